"""Heads on several processes: tensor parallelism by torch's DTensor.

torchrun --standalone --nproc-per-node 2 docs/examples/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import rope_xp

TOKENS, HEADS, KEY_HEADS, HEAD_DIM = 6, 4, 2, 16


class Projections(nn.Module):
    """The part of an attention layer up to its rotated queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(32, HEADS * HEAD_DIM, bias=False)
        self.k = nn.Linear(32, KEY_HEADS * HEAD_DIM, bias=False)
        self.rope = rope_xp.RoPE(layout="half")

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q = self.q(x).unflatten(-1, (HEADS, HEAD_DIM))
        k = self.k(x).unflatten(-1, (KEY_HEADS, HEAD_DIM))
        return self.rope.apply(q, k, positions)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)  # the same weights and inputs on every process
    layer, x = Projections(), torch.randn(1, TOKENS, 32)
    positions = 1000 + torch.arange(TOKENS)  # a plain tensor: every process knows all of it
    expected = [y.detach() for y in layer(x, positions)]

    columns = ColwiseParallel(use_local_output=False)  # q and k stay DTensors, heads are sharded
    parallelize_module(layer, mesh, {"q": columns, "k": columns})
    for y, whole in zip(layer(x, positions), expected, strict=True):
        assert y.placements == (Shard(2),)
        # A matrix product of fewer columns may sum in another order.
        torch.testing.assert_close(y.full_tensor(), whole, rtol=0, atol=1e-5)

    # The rotation itself changes no bit.
    q = torch.randn(1, TOKENS, HEADS, HEAD_DIM)
    turned = layer.rope.rotate(distribute_tensor(q, mesh, [Shard(2)]), positions)
    assert torch.equal(turned.full_tensor(), layer.rope.rotate(q, positions))
    if dist.get_rank() == 0:
        print(f"{mesh.size()} processes, {tuple(y.to_local().shape)} of {tuple(y.shape)} keys each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
