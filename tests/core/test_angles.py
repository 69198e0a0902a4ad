"""Angles are exact at any position, on every backend."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from support import oracles
from support.equality import check_angles
from support.oracles import BELOW_2_22, BELOW_2_31
from support.targets import Target, namespace, truth

from rope_xp import RoPE, scaling
from rope_xp._core.library import TableKey
from rope_xp._rotation.tables import host_tables


def tables(backend: Target, rope: RoPE, positions: np.ndarray, head_dim: int, traced: bool):
    """Return cos and sin as numpy arrays, positions being data of the backend."""
    if traced:
        made = backend.run(lambda p: rope.cos_sin(p, head_dim), backend.make(positions))
    else:
        made = rope.cos_sin(positions, head_dim)
    return [np.asarray(backend.back(t), np.float64) for t in made]


@pytest.mark.parametrize(("base", "r"), [(1e4, 128), (5e5, 128), (1e6, 80), (1e7, 256)])
def test_random_positions_against_mpmath(backend: Target, base: float, r: int) -> None:
    rng = np.random.default_rng(r)
    pairs = sorted({0, 1, 2, 5, r // 4, r // 2 - 1})
    for top, bound in ((1 << 22, BELOW_2_22), (1 << 31, BELOW_2_31)):
        positions = rng.integers(1 - top, top, 150)
        cos, sin = oracles.true_cos_sin([int(p) for p in positions], base, r, pairs)
        got_cos, got_sin = tables(backend, RoPE(base=base), positions, r, traced=True)
        assert np.abs(got_cos[:, pairs] - cos).max() <= bound
        assert np.abs(got_sin[:, pairs] - sin).max() <= bound


def test_every_digit_below_2_22() -> None:
    """All 2048**2 combinations of two digits, for the pairs that turn fastest.

    float64 angles serve as truth: below 2**22 they are right to 1e-9.
    """
    rope = RoPE()
    frequencies = rope.frequencies(128)[[0, 1, 9]]
    host = host_tables(TableKey(rope, 128, False, False))
    columns = [0, 1, 9, 64, 65, 73]
    low, middle = (t[:, columns].astype(np.float32) for t in tuple(host)[:2])
    worst = 0.0
    for digit in range(0, 2048, 3):
        c1, s1 = middle[digit, :3], middle[digit, 3:]
        cos = low[:, :3] * c1 - low[:, 3:] * s1
        sin = low[:, 3:] * c1 + low[:, :3] * s1
        angles = (digit * 2048 + np.arange(2048))[:, None] * frequencies
        worst = max(worst, np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max())
    assert 1e-8 < worst <= BELOW_2_22


def test_same_bits_on_every_backend(backend: Target) -> None:
    """jax among them: products that its compiler cannot fuse."""
    rng = np.random.default_rng(7)
    positions = np.concatenate([np.arange(3000), rng.integers(1 - (1 << 31), 1 << 31, 5000)])
    expected = RoPE().cos_sin(positions, 64)
    for g, e in zip(tables(backend, RoPE(), positions, 64, traced=True), expected, strict=True):
        np.testing.assert_array_equal(g, e.astype(np.float64))


@pytest.mark.parametrize("kind", ["integers", "fractions"])
def test_same_bits_in_float64(backend: Target, kind: str) -> None:
    """Cosines of two libraries differ in the last bit, so none of theirs may be in use."""
    rng = np.random.default_rng(8)
    positions = np.concatenate([np.arange(3000), rng.integers(1 - (1 << 31), 1 << 31, 5000)])
    if kind == "fractions":
        positions = rng.integers(-(1 << 22), 1 << 22, 8000) / 64  # which float32 can hold
    dtype = np.dtype(backend.floats[-1])
    x = rng.standard_normal((8000, 1, 64)).astype(dtype)
    rope = RoPE(scaling=scaling.Linear(0.25))
    got = backend.back(backend.run(rope.rotate, backend.make(x), backend.make(positions)))
    expected = truth(rope.rotate, x, positions)
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)
    else:
        assert np.abs(got - expected).max() <= 2e-6


def test_float_positions(backend: Target) -> None:
    """Fractions turn by one more rotation: 4e-7 is promised at positions that float32 can hold."""
    positions = np.array([0.25, 0.5, -0.25, 1.75, 1000.125, 70_000.5, -70_000.5, 1_000_000.5])
    cos, sin = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    kinds = [np.float32] if backend.floats[-1] == "float32" else [np.float32, np.float64]
    for kind in kinds:
        got_cos, got_sin = tables(backend, RoPE(), positions.astype(kind), 64, traced=True)
        assert np.abs(got_cos - cos).max() <= 4e-7
        assert np.abs(got_sin - sin).max() <= 4e-7


def test_float64_positions_of_the_host_keep_their_fraction(backend: Target) -> None:
    """A float32 library gets what numpy holds: 8388608.3 has no float32 within 0.2."""
    positions = np.array([8_388_608.3, 100_000_000.7])
    true = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    check_angles(backend, RoPE(), positions, true, 4e-7)


@pytest.mark.parametrize("r", [64, 80])
@pytest.mark.parametrize(
    "positions",
    [
        [0, 1, 4097, 131_071, 1_000_000, -123_456_789, (1 << 31) - 1],
        [0.1, -1 / 3, 1000.7, 123_456.789],
    ],
    ids=["integers", "fractions"],
)
def test_float64_arrays_get_float64_angles(backend: Target, positions: list[Any], r: int) -> None:
    """2**-52 * (1 + |p| * frequency) is promised."""
    if "float64" not in backend.floats:
        with pytest.raises((ValueError, TypeError), match="float64"):
            RoPE().cos_sin([1], 8, xp=namespace(backend), dtype=np.float64)
        return
    true = oracles.true_cos_sin(positions, 1e4, r)
    bound = 2.0**-52 * (1 + np.abs(positions)[:, None] * RoPE().frequencies(r))
    for given in (positions, backend.make(np.array(positions))):
        check_angles(backend, RoPE(), given, true, bound, "float64")


def test_frequencies_are_the_nearest_float64() -> None:
    for base, r in ((1e4, 128), (5e5, 96), (1e6, 80)):
        with mpmath.workdps(40):
            exact = [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / r) for i in range(r // 2)]
            assert RoPE(base=base).frequencies(r).tolist() == [float(f) for f in exact]


def test_wavelengths() -> None:
    rope = RoPE(scaling=scaling.Linear(2.0))
    np.testing.assert_allclose(rope.wavelengths(8) * rope.frequencies(8), 2 * np.pi)
    np.testing.assert_allclose(rope.wavelengths(8)[0], 4 * np.pi)
