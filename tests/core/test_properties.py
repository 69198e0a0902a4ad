"""What makes it a rotary embedding, for random shapes, positions and options."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.targets import Target, rows

import rope_xp
from rope_xp import RoPE

# Float32 angles below 2**31 are off by 3.4e-7 a table; a property composes up to three of them on
# values up to 1, and sums over at most 32 components.
ATOL = 5e-6

ropes = st.builds(
    lambda base, layout, part: RoPE(
        base=base, layout=layout, rotary_dim=part[0], rotary_offset=part[1]
    ),
    st.sampled_from([100.0, 1e4, 5e5, 1e7]),
    st.sampled_from(["interleaved", "half"]),
    st.sampled_from([(None, 0), (2, 1), (6, 0), (8, -8), (8, 2)]),
)
positions = st.integers(-(2**29), 2**29)
fewer = settings(max_examples=8)
# jax compiles each shape anew, and what compiles equals numpy to the bit or nearly, as others test.
random_on = pytest.mark.parametrize("backend", rows(names=("numpy", "array-api-strict", "torch")))


def vectors(seed: int, tokens: int) -> np.ndarray:
    x = np.random.default_rng(seed).uniform(-1, 1, (tokens, 3, 10))
    return x.astype(np.float32)


def rotated(backend: Target, rope: RoPE, x: np.ndarray, p: list[int]) -> np.ndarray:
    made = backend.run(lambda x: rope.rotate(x, p), backend.make(x))
    return backend.back(made).astype(np.float64)


@random_on
@fewer
@given(ropes, st.integers(0, 99), positions, positions)
def test_scores_depend_on_the_difference_alone(
    backend: Target, rope: RoPE, seed: int, m: int, n: int
) -> None:
    """R(m)^T R(n) = R(n - m), arXiv 2104.09864, eq. 16."""
    q, k = vectors(seed, 1), vectors(seed + 1, 1)
    score = (rotated(backend, rope, q, [m]) * rotated(backend, rope, k, [n])).sum(-1)
    moved = (q * rotated(backend, rope, k, [n - m])).sum(-1)
    np.testing.assert_allclose(score, moved, rtol=0, atol=ATOL)


@random_on
@fewer
@given(ropes, st.integers(0, 99), st.lists(positions, min_size=1, max_size=5))
def test_unrotate_is_the_inverse(backend: Target, rope: RoPE, seed: int, p: list[int]) -> None:
    x = vectors(seed, len(p))
    there = backend.run(lambda x: rope.rotate(x, p), backend.make(x))
    back = backend.back(backend.run(lambda y: rope.unrotate(y, p), there))
    np.testing.assert_allclose(back, x, rtol=0, atol=ATOL)
    negative = rotated(backend, rope, x, [-n for n in p])
    conjugate = backend.back(backend.run(lambda x: rope.unrotate(x, p), backend.make(x)))
    np.testing.assert_array_equal(conjugate, negative)


@given(
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(1, 9).map(lambda n: 2 * n),
    st.sampled_from(["bshd", "bhsd", "sbhd"]),
    st.integers(0, 99),
)
def test_any_shape_and_axes(b: int, s: int, h: int, d: int, axes: str, seed: int) -> None:
    """numpy alone: rotating a transposed array is transposing a rotated one."""
    sizes = {"b": b, "s": s, "h": h, "d": d}
    rng = np.random.default_rng(seed)
    x = rng.standard_normal([sizes[a] for a in "bshd"])
    p = rng.integers(0, 1000, (b, s))
    order = ["bshd".index(a) for a in axes]
    expected = rope_xp.RoPE().rotate(x, p).transpose(order)
    np.testing.assert_array_equal(RoPE().rotate(x.transpose(order), p, axes=axes), expected)
