"""What a result of any backend is compared by: the positions, the bits, the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from rope_xp import RoPE
from support import oracles
from support.targets import Target, numpy_dtype

LAYOUTS = ("interleaved", "half", "interleaved_to_half")
POSITIONS = np.array([0, 1, 2047, 2048, 70_000, (1 << 22) + 3, (1 << 31) - 1, -1, -70_001])


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def same(
    backend: Target, result: Any, expected: np.ndarray, x: np.ndarray, layout: str, r: int
) -> None:
    """Check shape, dtype and numbers of one result."""
    assert type(result) is type(backend.make(x)) or backend.name.startswith("torch-compile")
    got = backend.back(result)
    assert got.shape == x.shape
    assert got.dtype == x.dtype
    if backend.truncates and x.dtype.name == "bfloat16":
        bits, right = (y.view(np.int16).astype(int) for y in (got, expected))
        assert np.abs(bits - right).max(initial=0) <= 1
        return
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)
        return
    turned = oracles.ulps(got[..., :r], expected[..., :r], x[..., :r], layout)
    if x.dtype in (np.float32, np.float64):
        assert turned <= backend.ulps
    else:
        # Rounded once from float32 values that close: at a tie, one unit of 16 bits apart.
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[x.dtype.name]
        size = np.abs(x[..., :r].astype(np.float64)).max()
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        assert distance.max() <= eps * 2 * size
        assert (distance > 0).mean() < 0.01
    np.testing.assert_array_equal(got[..., r:], expected[..., r:])


def check_angles(
    backend: Target,
    rope: RoPE,
    positions: Any,
    true: tuple[np.ndarray, np.ndarray],
    bound: Any,
    dtype: str = "float32",
) -> None:
    """Compare the cos and sin by which a backend rotates with true ones, (tokens, pairs)."""
    tokens, pairs = true[0].shape
    x = np.zeros((tokens, 1, 2 * pairs), dtype)
    x[..., ::2] = 1.0  # pairs (1, 0), which are rotated to (cos, sin)
    if isinstance(positions, (list, np.ndarray)) or positions is None:
        result = backend.run(lambda x: rope.rotate(x, positions), backend.make(x))
    else:
        result = backend.run(rope.rotate, backend.make(x), positions)
    rotated = backend.back(result)[:, 0]
    assert (np.abs(rotated[:, ::2] - true[0]) <= bound).all()
    assert (np.abs(rotated[:, 1::2] - true[1]) <= bound).all()
