"""What makes it a rotary embedding, for random shapes, positions and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.targets import Target, rows

from rope_xp import RoPE

# Float32 angles below 2**31 are off by 3.4e-7 a table; a property composes up to three of them on
# values up to 1, and sums over at most 32 components.
ATOL = 5e-6
SLICES = [(None, 0), (2, 1), (6, 0), (8, -8), (8, 2)]

ropes = st.builds(
    lambda base, layout, part: RoPE(
        base=base, layout=layout, rotary_dim=part[0], rotary_offset=part[1]
    ),
    st.sampled_from([100.0, 1e4, 5e5, 1e7]),
    st.sampled_from(["interleaved", "half"]),
    st.sampled_from(SLICES),
)
positions = st.integers(-(2**29), 2**29)
fewer = settings(max_examples=8)
# jax compiles each shape anew, and what compiles equals numpy to the bit or nearly, as others test.
random_on = pytest.mark.parametrize("backend", rows(names=("numpy", "array-api-strict", "torch")))


def sample(seed: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (tokens, 3, 10)).astype(np.float32)


def run(backend: Target, rotate: Callable[..., Any], x: np.ndarray, p: list[int]) -> np.ndarray:
    return backend.back(backend.run(lambda x: rotate(x, p), backend.make(x)))


@random_on
@fewer
@given(ropes, st.integers(0, 99), positions, positions)
def test_scores_depend_on_the_difference_alone(
    backend: Target, rope: RoPE, seed: int, m: int, n: int
) -> None:
    """R(m)^T R(n) = R(n - m), arXiv 2104.09864, eq. 16."""
    q, k = sample(seed, 1).astype(np.float64), sample(seed + 1, 1)
    q_at_m = run(backend, rope.rotate, q.astype(np.float32), [m]).astype(np.float64)
    score = (q_at_m * run(backend, rope.rotate, k, [n])).sum(-1)
    moved = (q * run(backend, rope.rotate, k, [n - m])).sum(-1)
    np.testing.assert_allclose(score, moved, rtol=0, atol=ATOL)


@random_on
@fewer
@given(ropes, st.integers(0, 99), st.lists(positions, min_size=1, max_size=5))
def test_unrotate_is_the_inverse(backend: Target, rope: RoPE, seed: int, p: list[int]) -> None:
    x = sample(seed, len(p))
    back = run(backend, rope.unrotate, run(backend, rope.rotate, x, p), p)
    np.testing.assert_allclose(back, x, rtol=0, atol=ATOL)
    negative = run(backend, rope.rotate, x, [-n for n in p])
    np.testing.assert_array_equal(run(backend, rope.unrotate, x, p), negative)
