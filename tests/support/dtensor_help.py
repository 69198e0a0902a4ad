"""What the cases for DTensors share: samples, comparisons, counts of collectives, their runner."""

import contextlib
import json
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from rope_xp import RoPE

from .torch_op import TORCH

CASES: dict[str, tuple[tuple[int, ...], Callable[..., None]]] = {}
TOKENS = 7  # parts are uneven: 4 and 3; 2, 2, 2 and 1
ROPE = RoPE(layout="half", rotary_dim=12)
POSITIONS = torch.tensor([5, 70_000, 3, 1_000_000, 9, 2047, 12])
BATCHED = torch.stack([POSITIONS, POSITIONS + 1, POSITIONS * 2, POSITIONS // 2])
R = Replicate()


def case(*processes: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        CASES[function.__name__] = processes, function
        return function

    return add


def run(folder: str, number: str, count: str, *names: str) -> None:
    """Run the cases of these names, or all, in one process of several; write failures to a file."""
    rank, processes, path = int(number), int(count), Path(folder, f"{number}.json")
    torch.set_num_threads(1)
    options = {"init_method": f"file://{folder}/store", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=processes, **options)
    mesh = init_device_mesh("cpu", (2,) if processes == 2 else (2, processes // 2))
    failures: dict[str, str | None] = {}
    # That nothing is imported yet can only be seen first of all.
    for name in sorted(CASES, key="plain_tensors_do_not_bring_it".__ne__):
        sizes, function = CASES[name]
        if processes not in sizes or (names and name not in names):
            continue
        failures[name] = None
        try:
            function(mesh)
        except Exception:  # noqa: BLE001  # whatever it is, the test that waits is to tell
            failures[name] = traceback.format_exc()
        path.write_text(json.dumps(failures), "utf-8")
        if failures[name] is not None:
            break  # the others wait in vain, and so would every case that follows
    dist.destroy_process_group()


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K = sample(4, TOKENS, 4, 16), sample(4, TOKENS, 2, 16, seed=1)


def same(got: DTensor, expected: torch.Tensor, placements: Any) -> None:
    assert tuple(got.placements) == tuple(placements), got.placements
    assert got.shape == expected.shape
    torch.testing.assert_close(got.full_tensor(), expected, rtol=0, atol=0)


@contextlib.contextmanager
def collectives(number: int | None) -> Iterator[None]:
    with CommDebugMode() as mode:
        yield
    if number is not None:
        assert mode.get_total_counts() == number, mode.get_comm_counts()


@contextlib.contextmanager
def refuses(error: type[Exception], *parts: str) -> Iterator[None]:
    with pytest.raises(error) as raised:
        yield
    assert all(part in str(raised.value) for part in parts), raised.value


def check(
    mesh: DeviceMesh,
    placements: list[Any],
    positions: Any,
    whole: Any,
    *,
    forward: int | None = 0,
    backward: int | None = 0,
    rope: RoPE = ROPE,
    function: Callable[..., Any] | None = None,
    k_placements: list[Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compare results, gradients and their placements with those of tensors in one process."""
    arrays = [x.detach().clone().to(dtype).requires_grad_() for x in (Q, K)]
    weights = [sample(*x.shape, dtype=dtype, seed=2) for x in arrays]
    expected = rope.apply(*arrays, whole)
    gradients = torch.autograd.grad(expected, arrays, weights)
    both = placements, k_placements or placements
    shards = [
        distribute_tensor(x.detach(), mesh, p).requires_grad_()
        for x, p in zip(arrays, both, strict=True)
    ]
    sharded_weights = [distribute_tensor(w, mesh, p) for w, p in zip(weights, both, strict=True)]
    with collectives(forward) if function is None else contextlib.nullcontext():
        results = (function or rope.apply)(*shards, positions)
    if TORCH < (2, 12):  # whose own backward gathers gradients
        backward = None
    with collectives(backward) if function is None else contextlib.nullcontext():
        torch.autograd.backward(results, sharded_weights)
    for x, y, value, gradient, p in zip(shards, results, expected, gradients, both, strict=True):
        same(y, value.detach(), p)
        assert y.stride() == value.stride()
        same(x.grad, gradient, p if TORCH >= (2, 12) else list(x.grad.placements))


def one(mesh_dim: int) -> list[list[Any]]:
    """Return the placements that a mesh of one dimension or two is tested with."""
    if mesh_dim == 1:
        return [[R], [Shard(0)], [Shard(1)], [Shard(2)]]
    return [
        *([Shard(0), Shard(1)], [Shard(0), Shard(2)], [Shard(1), Shard(2)], [Shard(2), Shard(1)]),
        *([R, Shard(1)], [Shard(1), R], [Shard(1), Shard(1)], [Shard(0), Shard(0)], [R, R]),
    ]
