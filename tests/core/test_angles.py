"""Angles are exact at any position, on every backend: whole, fractional, out of range."""

import re

import numpy as np
import pytest
from support import oracles
from support.equality import check_angles
from support.oracles import BELOW_2_22, BELOW_2_31
from support.rules import Only, Times
from support.targets import namespace, numpy_dtype, rows, truth

from rope_xp import RoPE, RopeError
from rope_xp.positions import video


@pytest.mark.parametrize(("base", "r"), [(1e4, 128), (5e5, 128), (1e6, 80), (1e7, 256)])
def test_cos_sin_of_random_positions_is_exact_and_the_same_on_every_backend(backend, base, r):
    rng, rope = np.random.default_rng(r), RoPE(base=base)
    pairs = sorted({0, 1, 2, 5, r // 4, r // 2 - 1})
    for top, bound in ((1 << 22, BELOW_2_22), (1 << 31, BELOW_2_31)):
        positions = rng.integers(1 - top, top, 150)
        true = oracles.true_cos_sin(positions.tolist(), base, r, pairs)
        tables = backend.run(lambda p: rope.cos_sin(p, r), backend.make(positions))
        tables = np.array([*map(backend.back, tables)])
        assert np.abs(tables[..., pairs] - true).max() <= bound
        np.testing.assert_array_equal(tables, rope.cos_sin(positions, r))


def test_float64_positions_of_the_host_keep_their_fraction(backend):
    """A float32 library gets what numpy holds: 8388608.3 has no float32 within 0.2."""
    positions = np.array([8_388_608.3, 100_000_000.7])
    true = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    check_angles(backend, RoPE(), positions, true, 4e-7)


@pytest.mark.parametrize(
    ("base", "positions"),
    [
        (1e4, [0, 1, 4097, 131_071, 1_000_000, -123_456_789, (1 << 31) - 1]),
        (1e4, [0.1, -1 / 3, 1000.7, 123_456.789]),
        (0.01, [-1e-5, -0.3, 0.7, -2.6]),  # frequencies above 1 show how fractions are rounded
    ],
    ids=["integers", "fractions", "fast"],
)
def test_angles_of_float64_arrays_are_exact(backend, base, positions):
    """2**-52 * (1 + |p| * frequency) is promised."""
    if "float64" not in backend.floats:
        with pytest.raises((ValueError, TypeError), match="float64|incompatible"):
            RoPE().cos_sin([1], 8, xp=namespace(backend), dtype=np.float64)
        return
    rope, true = RoPE(base=base), oracles.true_cos_sin(positions, base, 80)
    bound = 2.0**-52 * (1 + np.abs(positions)[:, None] * rope.frequencies(80))
    for given in (positions, backend.make(np.array(positions))):
        check_angles(backend, rope, given, true, bound, "float64")


def test_frequencies_are_the_nearest_float64():
    for base, r in ((1e4, 128), (5e5, 96), (1e6, 80)):
        exact = [float(f) for f in oracles.exact_frequencies(base, r)]
        assert RoPE(base=base).frequencies(r).tolist() == exact


EDGES = [1, 2047, 2048, (1 << 22) - 1, 1 << 22, (1 << 31) - 1]


@pytest.mark.parametrize("position", [sign * edge for edge in EDGES for sign in (1, -1)])
def test_positions_at_the_edges_of_digits_are_exact(backend, position):
    """The host counts the digits that positions need: one too few is a wrong angle or an error."""
    true = oracles.true_cos_sin([position], 1e4, 16)
    for kind in ("i4",) if backend.compiles else ("i4", "f8"):
        check_angles(backend, RoPE(), np.array([position], kind), true, BELOW_2_31)


@pytest.mark.parametrize("tokens", [2047, 2048, 2049, 2050])
def test_implicit_positions_around_a_digit_equal_given_ones(backend, tokens):
    x = backend.make(np.ones((tokens, 1, 4), np.float32))
    counted = backend.run(lambda x: RoPE().rotate(x), x)
    numbered = backend.run(lambda x: RoPE().rotate(x, np.arange(tokens)), x)
    np.testing.assert_array_equal(backend.back(counted), backend.back(numbered))


OUT_OF_RANGE = "positions must lie between -2147483648 and"


def test_positions_out_of_range_raise_or_give_nan(backend):
    """On the host an error; on a device, which is not read, NaN: loud, and never a guess."""
    x = backend.make(np.ones((3, 1, 8), np.float32))
    for position in (-0.5 - (1 << 31), 1 << 31, -(1 << 31), np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match=OUT_OF_RANGE):
            RoPE().rotate(x, [position, 0, 0])
    low, high = -(1 << 31), 1 << 31
    beyond = [np.array([np.nan, np.inf, high], "f4"), np.array([low] * 3, "i4")]
    beyond.append(np.array([high, high + 1, 2 * high - 1], "u4"))
    if "float64" in backend.floats:  # jax without x64 has no 64-bit integers either
        beyond += [np.array([high, 1 << 40, low]), np.array([-(1 << 63)] * 3)]
        beyond.append(np.array([high, (1 << 63) + 1, (1 << 64) - 1], np.uint64))
    reads = backend.module == "numpy" or backend.name in ("torch", "torch-native", "torch-triton")
    for far in beyond[:: 2 if backend.compiles else 1]:
        for dtype in {"float32", "float64"} & {*backend.floats}:
            x = backend.make(np.ones((3, 1, 8), dtype))
            if reads:  # memory of the host
                with pytest.raises(ValueError, match=OUT_OF_RANGE):
                    RoPE().rotate(x, backend.make(far))
            else:
                rotated = backend.back(backend.run(RoPE().rotate, x, backend.make(far)))
                assert np.isnan(rotated).all()


def test_positions_of_16_bits_are_what_their_dtype_holds(backend):
    """Whole numbers in 16-bit floats are whole numbers; fractions are what the dtype holds."""
    for dtype in ("float16", "bfloat16"):
        positions = np.array([0, 1.5, 100, -3]).astype(numpy_dtype(dtype))
        x = np.ones((4, 1, 8), np.float32)
        expected = truth(RoPE().rotate, x, positions.astype(np.float64))
        np.testing.assert_array_equal(truth(RoPE().rotate, x, positions), expected)
        if dtype in backend.floats:
            rotated = backend.run(RoPE().rotate, backend.make(x), backend.make(positions))
            np.testing.assert_allclose(backend.back(rotated), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_frequencies_above_1_and_below_0_are_exact(backend, sign):
    """As a base below 1 and a rule make them: nothing assumes slow pairs or one direction."""
    positions = [0, 3, 70_000, 70_000.5, -12_345.25, 2.75]
    cos, sin = oracles.true_cos_sin(positions, 0.01, 8)
    rope = RoPE(base=0.01, scaling=None if sign == 1 else Times(-1.0))
    check_angles(backend, rope, positions, (cos, sign * sin), 4e-6)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2.0**12), ("float64", 2.0**26)])
def test_fractions_of_fast_pairs_are_refused(backend, dtype, bound):
    """Beyond the bound, whole positions alone are computed."""
    x, fractions = backend.make(np.array([[[1, 0]]], dtype)), [0.75]
    for sign in (1, -1):
        fast, too_fast = (RoPE(scaling=Times(sign * f)) for f in (bound, 1.01 * bound))
        true = oracles.exact_cos_sin(tuple(fractions), (sign * bound,))
        error = 2.0**-23 if dtype == "float32" else 2.0**-52
        check_angles(backend, fast, fractions, true, error * (1 + bound), dtype)
        assert np.isfinite(backend.back(too_fast.rotate(x, [3]))).all()
        message = re.escape(f"got {1.01 * bound:g}")
        for call in (
            lambda r=too_fast: r.rotate(x, fractions),
            lambda r=too_fast: r.cos_sin(fractions, 2, dtype=np.dtype(dtype)),
            lambda r=too_fast: r.at(fractions, like=x),
        ):
            with pytest.raises(
                RopeError, match=f"positions has fractions.* at most 4096 .*{message}"
            ):
                call()


def test_pairs_of_frequency_0_are_left_alone():
    rope = RoPE(scaling=Only((1.0, 0.0, 0.0, 0.0)))
    assert rope.wavelengths(8).tolist() == [2 * np.pi, np.inf, np.inf, np.inf]
    x = np.ones((3, 1, 8), np.float32)
    np.testing.assert_array_equal(rope.rotate(x, [5, 70_000, 1 << 30])[..., 2:], 1.0)


SECTIONS, BASES = (8, 12, 12), (256.0, 10000.0, 1e6)


@pytest.mark.parametrize("denominator", [1, 48, 1024])  # float32 rounds those of 1/48
def test_fractions_of_components_are_exact(backend, denominator):
    """Positions below 2**20; 4e-7 is promised for frequencies up to 1."""
    rng = np.random.default_rng(denominator)
    most = min(1 << 20, (1 << 24) // denominator) * denominator
    positions = (rng.integers(-most, most, (3, 24)) / denominator).astype(np.float32)
    if denominator == 1:  # a frame rate makes fractions of frames alone
        positions[0] += np.float32(0.375)
    true = [*map(oracles.true_cos_sin, positions.tolist(), BASES, SECTIONS)]
    cos, sin = (np.concatenate(tables, axis=1) for tables in zip(*true, strict=True))
    for given in (positions, backend.make(positions))[backend.compiles :]:
        check_angles(backend, RoPE.axial(SECTIONS, bases=BASES), given, (cos, sin), 4e-7)


@pytest.mark.parametrize(
    ("sections", "bases", "order"),
    [
        ((44, 42, 42), (20676.6, 10000.0, 5000.0), "blocks"),  # Cosmos
        ((6, 10), (256.0, 1000.0), "alternating"),
        ((8, 2, 4, 2), None, "alternating"),
    ],
)
def test_axial_pairs_have_the_frequency_and_axis_of_their_section(sections, bases, order):
    options = {"bases": bases, "order": order, "base": 777.0}
    rope = RoPE.axial(sections, **options)
    bases = bases or (777.0,) * len(sections)
    series = [list(oracles.exact_frequencies(b, n)) for b, n in zip(bases, sections, strict=True)]
    pairs = []
    while any(series):
        for axis, left in enumerate(series):
            count = len(left) if order == "blocks" else min(1, len(left))
            pairs += [(float(left.pop(0)), axis) for _ in range(count)]
    assert rope.position_axes == tuple(axis for _, axis in pairs)
    assert rope.rotary_dim == sum(sections)
    assert rope.frequencies(sum(sections) + 8).tolist() == [frequency for frequency, _ in pairs]
    assert hash(rope) == hash(RoPE.axial(list(sections), **options))


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_each_section_is_rotated_as_by_a_rope_of_its_own(backend, layout):
    sections, bases, offset = (4, 12, 8), (100.0, 1e4, 300.0), 6
    cells = video(2, 3, 5) + np.array([[7], [1_000_003], [-2]])
    x = np.random.default_rng(0).standard_normal((1, cells.shape[1], 2, 32), np.float32)
    rope = RoPE.axial(sections, bases=bases, layout=layout, rotary_offset=offset)
    first, second = oracles.pair_indices(layout, sum(sections))[0]
    expected = x.astype(np.float64)
    start = 0
    for line, base, n in zip(cells.tolist(), bases, sections, strict=True):
        cos, sin = oracles.true_cos_sin(line, base, n)
        section = slice(start, start + n // 2)
        columns = [offset + c for c in (*first[section], *second[section])]
        angles = np.arctan2(sin, cos)[:, None, :]
        expected[..., columns] = oracles.rotate_complex(expected[..., columns], angles, "half")
        start += n // 2
    rotated = backend.back(rope.rotate(backend.make(x), cells))
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=3e-6)
