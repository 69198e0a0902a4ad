"""What each of two processes of layers/test_torch.py runs: a sharded model with rotary layers.

python tests/support/layer_shards.py FOLDER RANK
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rope_xp import RoPE, apply_frequencies
from rope_xp.layers.torch import Rotary

ROPE = RoPE(layout="half")
POSITIONS = 1_000_000 + torch.arange(6)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(32, 64, bias=False), torch.nn.Linear(32, 32, bias=False)
        self.rotary = Rotary(ROPE, learn="head", head_dim=16, heads=2)

    def forward(self, x):
        q, k = (layer(x).unflatten(-1, (-1, 16)) for layer in (self.q, self.k))
        return self.rotary(q, k, POSITIONS)


def assert_same(rotated, expected):
    for ours, theirs in zip(rotated, expected, strict=True):
        assert torch.equal(ours, theirs)


def learned(mesh):
    """Frequencies to learn, sharded apart from layers in bfloat16, keep float32."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 32)
    with torch.device("meta"):
        model = Block()
    fully_shard(model.rotary, mesh=mesh)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    start = torch.from_numpy(ROPE.frequencies(16)).float().expand(2, 8)
    model.rotary.reset_parameters()
    assert isinstance(model.rotary.frequencies, DTensor)
    assert torch.equal(model.rotary.frequencies.full_tensor(), start)
    with torch.no_grad():
        model.rotary.frequencies.fill_(7.0)
    model.rotary.load_state_dict({"inv_freq": start[0]}, strict=True)
    assert torch.equal(model.rotary.frequencies.full_tensor(), start)
    whole = torch.nn.ModuleList([torch.nn.Linear(32, n, bias=False) for n in (64, 32)])
    for ours, theirs in zip((model.q, model.k), whole, strict=True):
        theirs.weight.data.copy_(ours.weight.full_tensor())
    whole.bfloat16()
    frequencies = start.clone().requires_grad_()
    q, k = (layer(x.bfloat16()).unflatten(-1, (-1, 16)) for layer in whole)
    expected = apply_frequencies(q, k, POSITIONS, frequencies, layout="half")
    rotated = model(x)
    assert_same(rotated, expected)
    for pair in (rotated, expected):
        sum(y.float().square().mul(y.sign()).sum() for y in pair).backward()
    grad = model.rotary.frequencies.grad.full_tensor()
    assert torch.equal(grad, frequencies.grad)
    assert grad.abs().max() > 0


def main(folder, rank):
    torch.set_num_threads(1)
    store = {"init_method": f"file://{folder / 'store'}", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=2, **store)
    mesh = init_device_mesh("cpu", (2,))
    learned(mesh)
    (folder / f"done{rank}").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
