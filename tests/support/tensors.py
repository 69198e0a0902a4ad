"""Tensors that the kernel for GPUs rotates, and the question whether it does so rightly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE
from support.targets import INTERPRETED, truth

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ON_A_GPU = []  # marks of tests that the interpreter runs too
if not INTERPRETED:
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
    ON_A_GPU = [pytest.mark.gpu, no_gpu]
POSITIONS = [0, 2047, 70_000, (1 << 31) - 1, -1]
Rotate = Callable[..., Any]


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(DEVICE, dtype)


def tensor(numbers: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def anywhere(shape: tuple[int, ...]) -> torch.Tensor:
    return tensor(np.random.default_rng(0).integers(0, 1 << 31, shape))


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Check bits. Where they are bfloat16, ``expected`` is wider, and may be truncated instead."""
    assert got.shape == expected.shape
    if got.dtype != torch.bfloat16:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        return
    nearest = expected.to(torch.bfloat16)
    right = (got.view(torch.int16) == nearest.view(torch.int16)) | (got.isnan() & nearest.isnan())
    if INTERPRETED:
        right |= got.view(torch.int16) == expected.float().view(torch.int32) >> 16
    assert right.all()


def right(rotate: Rotate, *arrays: torch.Tensor) -> Any:
    """Return what the portable path returns, in float32 for bfloat16."""
    contiguous = [x.float() if x.dtype == torch.bfloat16 else x.clone() for x in arrays]
    return truth(rotate, *contiguous)


def check(rotate: Rotate, *arrays: torch.Tensor) -> None:
    """Compare new results, and results written over the arrays, with the portable path's."""
    expected = right(rotate, *arrays)
    before = [x.clone() for x in arrays]
    results = rotate(*arrays)
    if len(arrays) == 1:
        expected, results = (expected,), (results,)
    for x, y, z, copy in zip(results, expected, arrays, before, strict=True):
        assert x.dtype == z.dtype
        same(x, y)
        torch.testing.assert_close(z, copy, rtol=0, atol=0, equal_nan=True)
    if any(0 in x.stride() for x in arrays):
        return
    rotate(*arrays, out=arrays if len(arrays) > 1 else arrays[0])
    for x, y in zip(arrays, expected, strict=True):
        same(x, y)


def rotation(rope: RoPE, positions: Any, axes: str = "bshd") -> Rotate:
    def rotate(*arrays: torch.Tensor, out: Any = None) -> Any:
        method = rope.rotate if len(arrays) == 1 else rope.apply
        return method(*arrays, positions, axes=axes, out=out)

    return rotate
