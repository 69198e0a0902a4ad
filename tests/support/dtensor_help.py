"""What the cases for DTensors share: samples, comparisons, counts of collectives."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
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
def refuses(error: type[Exception], *words: str) -> Iterator[None]:
    try:
        yield
    except error as raised:
        message = str(raised)
    else:
        message = "nothing was raised"
    for word in words:
        assert word in message, message


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
    each = [placements, k_placements or placements]
    spread = [
        distribute_tensor(x.detach(), mesh, p).requires_grad_()
        for x, p in zip(arrays, each, strict=True)
    ]
    spread_weights = [distribute_tensor(w, mesh, p) for w, p in zip(weights, each, strict=True)]
    with collectives(forward) if function is None else contextlib.nullcontext():
        results = (function or rope.apply)(*spread, positions)
    if TORCH < (2, 12):  # whose own backward gathers gradients
        backward = None
    with collectives(backward) if function is None else contextlib.nullcontext():
        torch.autograd.backward(results, spread_weights)
    for x, y, value, gradient, p in zip(spread, results, expected, gradients, each, strict=True):
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
