"""Tokens on several processes: context parallelism, by hand and by torch's DTensor.

torchrun --standalone --nproc-per-node 2 docs/examples/context_parallel.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import rope_xp
from rope_xp import positions

TOKENS = 16


def main() -> None:
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same q and k on every process
    q, k = torch.randn(2, TOKENS, 4, 16), torch.randn(2, TOKENS, 2, 16)
    rope = rope_xp.RoPE(layout="half")
    expected = rope.apply(q, k)

    # By hand, in order: plain tensors of one's own tokens, at positions from an offset.
    n = TOKENS // processes
    own = slice(rank * n, (rank + 1) * n)
    at = rank * n + torch.arange(n)
    for y, whole in zip(rope.apply(q[:, own], k[:, own], at), expected, strict=True):
        assert torch.equal(y, whole[:, own])

    # By hand, in zigzag order: positions need not be consecutive.
    own = positions.zigzag(TOKENS, processes, xp=torch)[rank]
    for y, whole in zip(rope.apply(q[:, own], k[:, own], own), expected, strict=True):
        assert torch.equal(y, whole[:, own])

    # As DTensors: positions count from 0 over all processes, and each takes those of its tokens.
    mesh = init_device_mesh("cpu", (processes,))
    spread = [distribute_tensor(x, mesh, [Shard(1)]) for x in (q, k)]
    for y, whole in zip(rope.apply(*spread), expected, strict=True):
        assert y.placements == (Shard(1),)
        assert torch.equal(y.full_tensor(), whole)
    if rank == 0:
        print(f"{processes} processes, {n} tokens each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
