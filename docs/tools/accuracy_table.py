"""Measure cos and sin tables against mpmath.

For every library that is installed, the largest error of any cos or sin among 256 consecutive
positions and all pairs of a head of 128 components, base 10000. "float32 product" is the usual
formula, ``cos(position * inv_freq)`` with both factors in float32, as the models of Hugging Face
compute it. "compiled" is torch.compile and jax.jit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import lru_cache

import mpmath
import numpy as np
from measured_group import Rows

import rope_xp

HEAD_DIM = 128
BASE = 10000.0
COUNT = 256
BLOCKS = {
    "4k": 2**12,
    "128k": 2**17,
    "1M": 2**20,
    "10M": 10**7,
    "2**31 - 1": 2**31,
}
"""Name of each block of positions, and the position that follows its last one."""

Tables = Callable[[np.ndarray], tuple[object, object]]


@lru_cache
def exact(end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of a block of positions to float64, from angles of 40 digits."""
    with mpmath.workdps(40):
        exponents = [mpmath.mpf(-i) / HEAD_DIM for i in range(0, HEAD_DIM, 2)]
        frequencies = [mpmath.mpf(BASE) ** e for e in exponents]
        pairs = [[mpmath.cos_sin(p * f) for f in frequencies] for p in range(end - COUNT, end)]
        both = np.array([[(float(c), float(s)) for c, s in row] for row in pairs])
    return both[..., 0], both[..., 1]


def product_numpy(positions: np.ndarray) -> tuple[object, object]:
    exponent = np.arange(0, HEAD_DIM, 2).astype(np.float32) / np.float32(HEAD_DIM)
    inv_freq = np.float32(1.0) / np.float32(BASE) ** exponent
    angle = positions.astype(np.float32)[:, None] * inv_freq
    return np.cos(angle), np.sin(angle)


def methods() -> Iterator[tuple[str, str, Tables]]:
    """Yield method, library and the function that computes the tables."""
    rope = rope_xp.RoPE(base=BASE)

    yield "float32 product", "numpy", product_numpy
    if _installed("torch"):
        import torch

        def product_torch(positions: np.ndarray) -> tuple[object, object]:
            exponent = torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM
            inv_freq = 1.0 / BASE**exponent
            angle = torch.asarray(positions).float()[:, None] * inv_freq
            return angle.cos(), angle.sin()

        yield "float32 product", "torch", product_torch
    if _installed("jax"):
        import jax.numpy as jnp

        def product_jax(positions: np.ndarray) -> tuple[object, object]:
            inv_freq = 1.0 / BASE ** (jnp.arange(0, HEAD_DIM, 2, dtype=jnp.float32) / HEAD_DIM)
            angle = jnp.asarray(positions, dtype=jnp.float32)[:, None] * inv_freq
            return jnp.cos(angle), jnp.sin(angle)

        yield "float32 product", "jax", product_jax

    yield "rope_xp", "numpy", lambda p: rope.cos_sin(p, HEAD_DIM)
    if _installed("array_api_strict"):
        import array_api_strict

        yield (
            "rope_xp",
            "array-api-strict",
            lambda p: rope.cos_sin(array_api_strict.asarray(p), HEAD_DIM),
        )
    if _installed("torch"):
        compiled = torch.compile(lambda p: rope.cos_sin(p, HEAD_DIM))
        yield "rope_xp", "torch", lambda p: rope.cos_sin(torch.asarray(p), HEAD_DIM)
        yield "rope_xp", "torch compiled", lambda p: compiled(torch.asarray(p))
    if _installed("jax"):
        import jax

        jitted = jax.jit(lambda p: rope.cos_sin(p, HEAD_DIM))
        yield "rope_xp", "jax", lambda p: rope.cos_sin(jnp.asarray(p), HEAD_DIM)
        yield "rope_xp", "jax compiled", lambda p: jitted(jnp.asarray(p))
    if _cupy_finds_a_gpu():
        import cupy

        yield "rope_xp", "cupy", lambda p: rope.cos_sin(cupy.asarray(p), HEAD_DIM)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _cupy_finds_a_gpu() -> bool:
    if not _installed("cupy"):
        return False
    import cupy

    try:
        return bool(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def to_numpy(table: object) -> np.ndarray:
    return np.asarray(table.get() if hasattr(table, "get") else table, dtype=np.float64)


def rows() -> Rows:
    """Return the errors of every method at every block of positions."""
    blocks = {name: np.arange(end - COUNT, end).astype(np.int32) for name, end in BLOCKS.items()}
    found: Rows = {}
    for method, library, compute in methods():
        found[f"{method}: {library}"] = {
            block: find_largest_error(compute(positions), BLOCKS[block])
            for block, positions in blocks.items()
        }
    return found


def find_largest_error(tables: tuple[object, object], end: int) -> float:
    """Return the largest error of cos and sin in the block of positions below ``end``."""
    both = zip(map(to_numpy, tables), exact(end), strict=True)
    return max(float(np.abs(found - true).max()) for found, true in both)
