"""RoPE in an attention module of torch, with grouped heads and a KV cache: prefill, then decode."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import rope_xp


class Cache(nn.Module):
    """Keys, which are rotated already, and values: (batch, slots, kv_heads, head_dim)."""

    def __init__(self, batch: int, slots: int, kv_heads: int, head_dim: int):
        super().__init__()
        self.register_buffer("keys", torch.zeros(batch, slots, kv_heads, head_dim))
        self.register_buffer("values", torch.zeros(batch, slots, kv_heads, head_dim))

    def put(self, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(1, positions, k)
        self.values.index_copy_(1, positions, v)
        return self.keys, self.values


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int):
        super().__init__()
        self.head_dim = dim // heads
        self.split = (heads, kv_heads, kv_heads)
        self.qkv = nn.Linear(dim, sum(self.split) * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.rope = rope_xp.RoPE(base=500_000.0, layout="half")

    def forward(self, x: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.head_dim)).split(self.split, dim=2)
        q, k = self.rope.apply(q, k, positions)  # (batch, tokens, heads, head_dim)
        keys, values = cache.put(positions, k, v)
        seen = torch.arange(keys.shape[1], device=x.device) <= positions[:, None]
        q, keys, values = (t.transpose(1, 2) for t in (q, keys, values))
        y = scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


def generate(attention, x: Tensor, cache: Cache, prefill: int) -> Tensor:
    """Run the first tokens at once, and then each by itself, behind those in the cache."""
    past, outputs = 0, []
    for part in (x[:, :prefill], *x[:, prefill:].split(1, dim=1)):
        tokens = part.shape[1]
        positions = past + torch.arange(tokens, device=x.device)
        outputs.append(attention(part, positions, cache))
        past += tokens
    return torch.cat(outputs, dim=1)


def main() -> None:
    torch.manual_seed(0)
    attention = Attention(dim=256, heads=8, kv_heads=2)
    x = torch.randn(1, 16, 256)
    with torch.no_grad():
        whole = attention(x, torch.arange(16), Cache(1, 32, 2, 32))
        eager = generate(attention, x, Cache(1, 32, 2, 32), prefill=12)
        compiled = torch.compile(attention, fullgraph=True)
        fast = generate(compiled, x, Cache(1, 32, 2, 32), prefill=12)
    for name, y in (("eager", eager), ("compiled", fast)):
        torch.testing.assert_close(y, whole, rtol=0, atol=1e-5)
        print(f"prefill and decode, {name}: {(y - whole).abs().max():.0e} from one pass")


if __name__ == "__main__":
    main()
