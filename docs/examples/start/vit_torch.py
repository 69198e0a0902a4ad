"""RoPE in the attention of a vision transformer: rows, columns and a class token."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import rope_xp
from rope_xp import positions


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, rows: int, columns: int):
        super().__init__()
        self.heads, head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        # Half of each head turns by the row of a patch, half by its column.
        self.rope = rope_xp.RoPE.axial((head_dim // 2, head_dim // 2), base=100.0)
        class_token = positions.text(1, 2, along=(), xp=torch)  # at (0, 0): not rotated
        patches = positions.grid(rows, columns, xp=torch)  # (2, rows * columns)
        at = torch.cat([class_token, patches], dim=1)
        self.register_buffer("positions", at, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rope.apply(q, k, self.positions, axes="bhsd")
        y = scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def main() -> None:
    torch.manual_seed(0)
    attention = Attention(dim=256, heads=8, rows=14, columns=12)
    x = torch.randn(2, 1 + 14 * 12, 256)
    y = attention(x)
    y.square().mean().backward()
    attention.positions += torch.tensor([[3], [5]])  # all three rows down, five columns right
    torch.testing.assert_close(attention(x), y, rtol=0, atol=1e-5)
    print(f"{attention.rope.position_axes}\n{tuple(y.shape)}: class token, 168 patches")


if __name__ == "__main__":
    main()
