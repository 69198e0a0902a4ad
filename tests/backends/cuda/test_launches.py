"""Launches of the kernel for GPUs, without a GPU: how many, of what, and how far they reach."""

from __future__ import annotations

import math
import mmap

import numpy as np
import pytest
from rope_xp_backends.gpu import cuda_plan
from rope_xp_backends.gpu.cuda_plan import TABLE_LOOKUP
from support import cuda_on_cpu
from support.cuda_arrays import keys_of_last_call, same, sample
from support.occupancy import waves
from support.targets import truth

import rope_xp
from rope_xp import RoPE
from rope_xp._arguments import parse
from rope_xp._arguments.axes import parse_axes
from rope_xp._core.call import UNKNOWN, RotationSpec
from rope_xp._core.memory import StridedLayout

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 23, 21)
# Rows are q's and k's shape, axes, and how many launches take both.
ONE_LAUNCH = [
    ((2, 21, 6, 64), (2, 21, 2, 64), "bshd", None),
    ((2, 6, 21, 64), (2, 2, 21, 64), "bhsd", None),
    ((21, 2, 6, 64), (21, 2, 2, 64), "sbhd", None),
    ((42, 6, 64), (42, 2, 64), "shd", None),
    ((2, 21, 64), (2, 21, 64), "bsd", None),
    ((2, 21, 6, 64), (2, 21, 2, 64), "bshd", (2, 21)),
    ((4, 2, 21, 6, 64), (4, 2, 21, 2, 64), "xbshd", None),
    ((4, 2, 21, 6, 64), (4, 2, 21, 2, 64), "xbshd", (4, 2, 21)),
    ((256, 1, 6, 64), (256, 1, 2, 64), "bshd", (256, 1)),
]


@pytest.mark.parametrize(("q_shape", "k_shape", "axes", "positions"), ONE_LAUNCH)
def test_one_launch_takes_q_and_k(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    axes: str,
    positions: tuple[int, ...] | None,
    rng: np.random.Generator,
) -> None:
    q, k = sample(rng, *q_shape), sample(rng, *k_shape)
    given = None if positions is None else rng.integers(0, 1 << 23, positions)
    rope = RoPE(layout="half")
    expected = truth(rope.apply, q, k, given, axes=axes)
    for got, e in zip(rope.apply(q, k, given, axes=axes), expected, strict=True):
        same(got, e)
    assert len(cuda_on_cpu.PATH.ran) == 1


@pytest.mark.parametrize("counted", [True, False])
def test_batch_axes_that_do_not_fold_take_launches(counted: bool, rng: np.random.Generator) -> None:
    q = sample(rng, 3, 2, 4, 21, 5, 64)[:, ::-1, ::2, ::-1]
    k = sample(rng, 3, 2, 2, 21, 2, 64)
    positions = None if counted else rng.integers(0, 1 << 23, (3, 1, 2, 21))
    expected = truth(rope_xp.apply, q, k, positions)
    for got, e in zip(rope_xp.apply(q, k, positions), expected, strict=True):
        same(got, e)
    assert len(cuda_on_cpu.PATH.ran) > 1


def test_rows_beyond_the_grid(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(cuda_plan, "MAX_GRID_Y", 2)
    cuda_plan.plan_steps.cache_clear()
    x = sample(rng, 5, 7, 3, 8)
    same(RoPE().rotate(x, POSITIONS[:7]), truth(RoPE().rotate, x, POSITIONS[:7]))
    assert cuda_on_cpu.PATH.ran[0].grid == (1, 2)
    cuda_plan.plan_steps.cache_clear()


def test_counted_positions_of_several_components(rng: np.random.Generator) -> None:
    x, rope = sample(rng, 5, 3, 16), RoPE(position_axes=(0, 1) * 4)
    same(rope.rotate(x), truth(rope.rotate, x))
    assert keys_of_last_call()[0].source == TABLE_LOOKUP  # alike in all components


def step_of(
    tokens: int, heads: tuple[int, int], head_dim: int = 128, axes: str = "bshd"
) -> cuda_plan.CudaLaunch:
    """Return the launch for q and k of bfloat16."""
    laid = []
    for n in heads:
        sizes = {"b": 1, "s": tokens, "h": n, "d": head_dim}
        shape = tuple(sizes[c] for c in axes)
        strides = tuple(2 * math.prod(shape[i + 1 :]) for i in range(4))
        laid.append(StridedLayout(shape, strides))
    turn = RotationSpec(parse_axes(axes, 4, "x"), "half", head_dim, 0, inverse=False)
    job = cuda_plan.CudaJob("bfloat16", turn, (False, False), TABLE_LOOKUP, True, 16, 0)
    (step,) = cuda_plan.plan_steps(job, (*laid, *laid), (StridedLayout((tokens,), (8,)),))
    return step


@pytest.mark.parametrize("axes", ["bshd", "bhsd"])
def test_64_mib_fill_a_gpu_often(axes: str) -> None:
    """The last blocks, which leave multiprocessors without work, are few beside the others."""
    step = step_of(6554, (32, 8), axes=axes)
    assert waves(math.prod(step.grid), math.prod(step.block)) >= 4


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(32, 8), (28, 4), (16, 16), (71, 1), (8, 1), (1, 1)])
def test_blocks_of_whole_warps(heads: tuple[int, int], head_dim: int) -> None:
    """And all heads find a lane, few lanes none."""
    for tokens in (512, 65536):
        grid, (x, y, z) = (step := step_of(tokens, heads, head_dim)).grid, step.block
        assert x * y * z % 32 == 0
        assert x * y * z <= cuda_plan.THREADS
        assert (grid[0] - 1) * z < tokens <= grid[0] * z
        turns = -(-sum(heads) // (2 * y))  # of two heads each
        assert 2 * y * turns <= 1.25 * sum(heads)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_positions_that_nobody_checked(dtype: str, rng: np.random.Generator) -> None:
    """As they lie on a device: out of range is NaN, in q and k and in every pair."""
    outside = [1 << 31, -(1 << 31), 1 << 62, -(1 << 63)] if dtype == "int64" else [-(1 << 31)]
    inside = [(1 << 31) - 1, 1 - (1 << 31), 0, -1, 2047, -2048, 1 << 22]
    positions = np.array(outside + inside, dtype)
    q, k = sample(rng, len(positions), 3, 64), sample(rng, len(positions), 1, 64)
    call = parse.apply(RoPE(), q, k, np.zeros(len(positions), int), None, None, None)
    (lookup,) = call.angles
    lookup.whole, lookup.position_range = positions, UNKNOWN
    for got, x in zip(cuda_on_cpu.PATH.run(call), (q, k), strict=True):
        assert np.isnan(got[: len(outside)]).all()
        same(got[len(outside) :], truth(RoPE().rotate, x[len(outside) :], inside))


@pytest.mark.parametrize("axes", ["shd", "hsd"])
def test_strides_beyond_32_bits(axes: str, rng: np.random.Generator) -> None:
    """Tokens, or heads, 3 GiB apart, in memory that is promised and not there."""
    apart = 3 << 30
    with mmap.mmap(-1, 2 * apart + (1 << 20)) as memory:
        buffer = np.frombuffer(memory, np.uint8)
        strides = (apart, 256, 2) if axes == "shd" else (apart, 512, 2)
        x = np.ndarray((3, 2, 128), np.float16, buffer, 64, strides)
        x[...] = sample(rng, 3, 2, 128, dtype="float16")
        positions = POSITIONS[: 3 if axes == "shd" else 2]
        expected = truth(RoPE().rotate, x.copy(), positions, axes=axes)
        RoPE().rotate(x, positions, axes=axes, out=x)
        same(x.copy(), expected)
        cuda_on_cpu.PATH.ran.clear()
        del x, buffer
