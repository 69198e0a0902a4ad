"""The rotation against complex arithmetic in float64."""

import numpy as np
import pytest
from support import oracles
from support.equality import LAYOUTS, check_result
from support.rules import Temperature
from support.targets import numpy_dtype, truth

import rope_xp
from rope_xp import RoPE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 3])
def test_rotate_equals_complex_multiplication(backend, layout, offset, rng):
    x = rng.standard_normal((2, 50, 3, 20), np.float32)
    rope = RoPE(layout=layout, rotary_dim=16, rotary_offset=offset, base=5e5)
    positions = rng.integers(0, 1 << 22, 50)
    angles = positions[:, None, None] * rope.frequencies(20)
    rotated = backend.back(backend.run(rope.rotate, backend.make(x), backend.make(positions)))
    # 1.7e-7 for each of cos and sin, and two roundings, at |x| up to 4.5.
    expected = oracles.rotate_complex(x, angles, layout, offset)
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=2.5e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_apply_tables_is_within_two_ulp(backend, layout, rng):
    """Bound: two products and their sum, each rounded: 2 ulp of max(|x1|, |x2|)."""
    x = (rng.standard_normal((40, 30, 64)) * 10.0 ** rng.integers(-6, 6, (40, 30, 64))).astype("f4")
    cos, sin = RoPE().cos_sin(rng.integers(0, 1 << 30, 40), 64)
    rotated = backend.run(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout),
        *map(backend.make, (x, cos, sin)),
    )
    (a, b), (to_a, to_b) = oracles.pair_indices(layout, 64)
    x1, x2 = x[..., a].astype("f8"), x[..., b].astype("f8")
    c, s = cos[:, None].astype("f8"), sin[:, None].astype("f8")
    exact = np.empty(x.shape)
    exact[..., to_a], exact[..., to_b] = x1 * c - x2 * s, x2 * c + x1 * s
    assert oracles.ulps(backend.back(rotated), exact, x, layout) <= 2


@pytest.mark.parametrize("part", [(None, 0), (2, 1), (8, -8)])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_scores_depend_on_the_difference_of_positions_alone(layout, part, rng):
    """R(m)^T R(n) = R(n - m), arXiv 2104.09864, eq. 16, and R(-m) = R(m)^T."""
    rope = RoPE(base=100.0, layout=layout, rotary_dim=part[0], rotary_offset=part[1])
    q, k = rng.uniform(-1, 1, (2, 8, 3, 10)).astype(np.float32)
    m, n = rng.integers(-(2**29), 2**29, (2, 8))
    at_m = rope.rotate(q, m)
    score = (at_m.astype(np.float64) * rope.rotate(k, n)).sum(-1)
    moved = (q.astype(np.float64) * rope.rotate(k, n - m)).sum(-1)
    # Angles are off by 3.4e-7 a table; three of them, on values up to 1, summed over components.
    np.testing.assert_allclose(score, moved, rtol=0, atol=5e-6)
    np.testing.assert_allclose(rope.unrotate(at_m, m), q, rtol=0, atol=5e-6)
    np.testing.assert_array_equal(rope.unrotate(q, m), rope.rotate(q, -m))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits_are_rounded_once(backend, dtype):
    """All finite values of the dtype, through float32 and back."""
    kind = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        every = np.arange(1 << 16, dtype=np.uint16).view(kind)
        size = np.abs(every.astype(np.float32))
        least = 1e-30 if backend.module == "jax" else 0.0  # XLA flushes subnormal numbers to 0
        every = every[(size < 3e4) & (size >= least)]
    x = np.resize(every, (1024, 1, 64))
    rope, positions = RoPE(), np.arange(1024) * 997
    single = truth(rope.rotate, x.astype(np.float32), positions)
    rotated = backend.run(lambda x: rope.rotate(x, positions), backend.make(x))
    check_result(backend, rotated, single.astype(kind), x)


def test_nan_and_infinity_pass_through(backend):
    x = np.ones((1, 1, 8), np.float32)
    x[..., 0], x[..., 2] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        rotated = backend.back(backend.run(lambda x: RoPE().rotate(x, [1]), backend.make(x)))[0, 0]
    assert np.isnan(rotated[:2]).all()
    assert np.isinf(rotated[2:4]).all()
    assert np.isfinite(rotated[4:]).all()


@pytest.mark.parametrize("axes", [None, (0, 1, 2, 1, 0, 0, 2, 2)])
def test_the_attention_factor_scales_once_and_is_undone(backend, axes, rng):
    rope = RoPE(scaling=Temperature(1.0), layout="half", position_axes=axes)
    assert rope.attention_factor == 1.25
    x = rng.standard_normal((9, 2, 16), np.float32)
    positions = np.arange(27 if axes else 9).reshape(-1, 9) * 100_000
    angles = positions[list(axes or [0] * 8)].T * RoPE().frequencies(16)
    expected = oracles.rotate_complex(x, angles[:, None], "half", factor=1.25)
    positions = positions if axes else positions[0]
    for dtype in set(backend.floats) & {"float32", "float64"}:
        rotated = rope.rotate(backend.make(x.astype(dtype)), positions)
        np.testing.assert_allclose(backend.back(rotated), expected, rtol=0, atol=3e-6)
        back = backend.back(rope.unrotate(rotated, positions))
        np.testing.assert_allclose(back, x, rtol=0, atol=3e-6)
    for dtype, bound in ((None, 3e-7), (np.float64, 1e-15)):
        tables = rope.cos_sin(positions, 16, dtype=dtype)
        np.testing.assert_allclose(np.hypot(*tables), 1.25, rtol=bound)


def test_apply_tables_widens_tables_to_the_precision_of_the_rotation(backend, rng):
    angles = rng.uniform(0, 6, (9, 4))
    cos, sin = np.cos(angles), np.sin(angles)
    bounds = {"float64": 1e-15, "float32": 5e-7, "float16": 2**-9, "bfloat16": 2**-6}
    for dtype in backend.floats:
        x = rng.standard_normal((9, 2, 8)).astype(numpy_dtype(dtype))
        expected = oracles.rotate_complex(x, angles[:, None], "interleaved")
        rotated = backend.back(rope_xp.apply_tables(backend.make(x), cos, sin))
        np.testing.assert_allclose(rotated.astype(float), expected, rtol=0, atol=bounds[dtype])
        # Tables of few bits are widened, not multiplied as they are.
        low = [t.astype(numpy_dtype(dtype)) for t in (cos, sin)]
        x = rng.standard_normal((9, 2, 8), np.float32)
        expected = truth(rope_xp.apply_tables, x, *(t.astype(np.float32) for t in low))
        rotated = backend.back(rope_xp.apply_tables(backend.make(x), *map(backend.make, low)))
        np.testing.assert_allclose(rotated, expected, rtol=0, atol=5e-7)
