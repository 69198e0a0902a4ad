"""Angles are exact at any position, on every backend: whole, fractional, out of range."""

import mpmath
import numpy as np
import pytest
from support import oracles
from support.equality import check_angles
from support.oracles import BELOW_2_22, BELOW_2_31
from support.rules import Only, Times
from support.targets import Target, namespace, numpy_dtype, truth

from rope_xp import RoPE, RopeError, scaling


def compute_tables(
    backend: Target, rope: RoPE, positions: np.ndarray, head_dim: int
) -> list[np.ndarray]:
    tables = backend.run(lambda p: rope.cos_sin(p, head_dim), backend.make(positions))
    return [np.asarray(backend.back(t), np.float64) for t in tables]


@pytest.mark.parametrize(("base", "r"), [(1e4, 128), (5e5, 128), (1e6, 80), (1e7, 256)])
def test_random_positions_are_exact(backend, base, r):
    rng = np.random.default_rng(r)
    pairs = sorted({0, 1, 2, 5, r // 4, r // 2 - 1})
    for top, bound in ((1 << 22, BELOW_2_22), (1 << 31, BELOW_2_31)):
        positions = rng.integers(1 - top, top, 150)
        true = oracles.true_cos_sin(positions.tolist(), base, r, pairs)
        tables = compute_tables(backend, RoPE(base=base), positions, r)
        for table, exact in zip(tables, true, strict=True):
            assert np.abs(table[:, pairs] - exact).max() <= bound


def test_all_combinations_of_two_digits_are_within_the_bound():
    """A third of 2048**2, at the fastest frequencies. float64 angles are right to 1e-9 there."""
    frequencies = RoPE().frequencies(128)[[0, 1, 9]]
    rope, worst = RoPE(scaling=Only(tuple(frequencies.tolist()))), 0.0
    for positions in np.arange(1 << 22).reshape(2048, 2048)[::3]:
        cos, sin = rope.cos_sin(positions, 6)
        angles = positions[:, None] * frequencies
        worst = max(worst, np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max())
    assert 1e-8 < worst <= BELOW_2_22


def test_tables_have_the_same_bits_on_every_backend(backend):
    rng = np.random.default_rng(7)
    whole = np.concatenate([np.arange(3000), rng.integers(1 - (1 << 31), 1 << 31, 5000)])
    for positions in (whole, (whole[3000:] / (1 << 20)).astype(np.float32)):
        tables = compute_tables(backend, RoPE(), positions, 64)
        bound = 1.2e-7 if backend.ulps and positions is not whole else 0
        np.testing.assert_allclose(tables, RoPE().cos_sin(positions, 64), rtol=0, atol=bound)


@pytest.mark.parametrize("kind", ["integers", "fractions"])
def test_float64_has_the_same_bits_on_every_backend(backend, kind):
    """Cosines of two libraries differ in the last bit, so none of theirs may be in use."""
    rng = np.random.default_rng(8)
    positions = np.concatenate([np.arange(1500), rng.integers(1 - (1 << 31), 1 << 31, 2500)])
    if kind == "fractions":
        positions = rng.integers(-(1 << 22), 1 << 22, 4000) / 64  # which float32 can hold
    on_host = positions.astype(backend.floats[-1]) if kind == "fractions" else positions
    x = rng.standard_normal((4000, 1, 64)).astype(backend.floats[-1])
    rope = RoPE(scaling=scaling.Linear(0.25))
    rotated = backend.back(backend.run(rope.rotate, backend.make(x), backend.make(on_host)))
    bound = 0 if backend.ulps == 0 else 2e-6
    np.testing.assert_allclose(rotated, truth(rope.rotate, x, positions), rtol=0, atol=bound)


def test_float64_positions_of_the_host_keep_their_fraction(backend):
    """A float32 library gets what numpy holds: 8388608.3 has no float32 within 0.2."""
    positions = np.array([8_388_608.3, 100_000_000.7])
    true = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    check_angles(backend, RoPE(), positions, true, 4e-7)


@pytest.mark.parametrize(
    "positions",
    [
        [0, 1, 4097, 131_071, 1_000_000, -123_456_789, (1 << 31) - 1],
        [0.1, -1 / 3, 1000.7, 123_456.789],
    ],
    ids=["integers", "fractions"],
)
def test_angles_of_float64_arrays_are_exact(backend, positions):
    """2**-52 * (1 + |p| * frequency) is promised."""
    if "float64" not in backend.floats:
        with pytest.raises((ValueError, TypeError), match="float64|incompatible"):
            RoPE().cos_sin([1], 8, xp=namespace(backend), dtype=np.float64)
        return
    for r in (64, 80):
        true = oracles.true_cos_sin(positions, 1e4, r)
        bound = 2.0**-52 * (1 + np.abs(positions)[:, None] * RoPE().frequencies(r))
        check_angles(backend, RoPE(), positions, true, bound, "float64")
        on_device = backend.make(np.array(positions))
        check_angles(backend, RoPE(), on_device, true, bound, "float64")


def test_frequencies_are_the_nearest_float64():
    for base, r in ((1e4, 128), (5e5, 96), (1e6, 80)):
        exact = [float(f) for f in oracles.exact_frequencies(base, r)]
        assert RoPE(base=base).frequencies(r).tolist() == exact


# --- edges ---------------------------------------------------------------------------------------

EDGES = [2047, 2048, (1 << 22) - 1, 1 << 22, (1 << 31) - 1]


@pytest.mark.parametrize("position", [sign * edge for edge in EDGES for sign in (1, -1)])
def test_positions_at_the_edges_of_digits_are_exact(backend, position):
    """The host counts the digits that positions need: one too few is a wrong angle or an error."""
    true = oracles.true_cos_sin([position], 1e4, 16)
    given = [position], np.array([position], np.int32), np.array([position], float)
    for positions in given[:1] if backend.compiles else given:
        check_angles(backend, RoPE(), positions, true, BELOW_2_31)


@pytest.mark.parametrize("tokens", [2047, 2048, 2049, 2050])
def test_implicit_positions_around_a_digit_equal_given_ones(backend, tokens):
    x = np.tile(np.array([1, 0, 1, 0], np.float32), (tokens, 1, 1))
    counted = backend.back(backend.run(lambda x: RoPE().rotate(x), backend.make(x)))
    numbered = backend.run(lambda x: RoPE().rotate(x, np.arange(tokens)), backend.make(x))
    np.testing.assert_array_equal(counted, backend.back(numbered))
    (cos,), (sin,) = oracles.true_cos_sin([tokens - 1], 1e4, 4)
    assert np.abs(counted[-1, 0, ::2] - cos).max() <= BELOW_2_22
    assert np.abs(counted[-1, 0, 1::2] - sin).max() <= BELOW_2_22


OUT_OF_RANGE = "positions must lie between -2147483648 and"


def test_positions_out_of_range_raise_or_give_nan(backend):
    """On the host an error; on a device, which is not read, NaN: loud, and never a guess."""
    x = backend.make(np.ones((3, 1, 8), np.float32))
    for position in (0.5 - (1 << 31), 1 << 31, -(1 << 31), np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match=OUT_OF_RANGE):
            RoPE().rotate(x, [position, 0, 0])
    if backend.name in ("torch", "torch-native", "torch-triton"):  # the last one interpreted
        for far in ([np.nan, 0.0, 0.0], [1 << 31, 0, 0]):
            with pytest.raises(ValueError, match=OUT_OF_RANGE):
                RoPE().rotate(x, backend.make(np.array(far)))
        return
    if backend.module == "numpy":
        return
    beyond = [np.array([1 << 31, (1 << 31) + 1, (1 << 32) - 1], np.uint32)]
    if "float64" in backend.floats:  # jax without x64 has no 64-bit integers either
        beyond += [np.array([1 << 31, 1 << 40, -(1 << 31)]), np.array([-(1 << 63)] * 3)]
        beyond.append(np.array([1 << 31, (1 << 63) + 1, (1 << 64) - 1], np.uint64))
    cases = [("float32", np.array([np.nan, np.inf, 2.0**31], np.float32))]
    cases += [("float32", np.array([np.iinfo(np.int32).min] * 3, np.int32))]
    cases += [(t, far) for t in ("float32", "float64") if t in backend.floats for far in beyond]
    for dtype, far in cases[:: 3 if backend.compiles else 1]:
        x = backend.make(np.ones((3, 1, 8), dtype))
        assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(far)))).all()


def test_positions_of_16_bits_are_what_their_dtype_holds(backend):
    """Whole numbers in 16-bit floats are whole numbers; fractions are what the dtype holds."""
    for dtype in ("float16", "bfloat16"):
        positions = np.array([0, 1.5, 100, -3]).astype(numpy_dtype(dtype))
        x = np.ones((4, 1, 8), np.float32)
        expected = truth(RoPE().rotate, x, positions.astype(np.float64))
        np.testing.assert_array_equal(truth(RoPE().rotate, x, positions), expected)
        if dtype in backend.floats:
            # Calls of a kernel that reads whole positions alone are cached before.
            whole = positions.astype(np.int64)
            for p in (positions,) if backend.compiles else (whole, whole, positions, positions):
                rotated = backend.run(RoPE().rotate, backend.make(x), backend.make(p))
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
    if dtype not in backend.floats:
        pytest.skip(f"{backend} is not tested with {dtype}")
    x, fractions = backend.make(np.array([[[1, 0]]], dtype)), [0.75]
    for sign in (1, -1):
        fast, too_fast = (RoPE(scaling=Times(sign * f)) for f in (bound, 1.01 * bound))
        with mpmath.workdps(30):
            exact = [float(mpmath.cos(0.75 * bound)), sign * float(mpmath.sin(0.75 * bound))]
        rotated = backend.back(backend.run(lambda x, r=fast: r.rotate(x, fractions), x))
        error = 2.0**-23 if dtype == "float32" else 2.0**-52
        np.testing.assert_allclose(rotated[0, 0], exact, rtol=0, atol=error * (1 + bound))
        assert np.isfinite(backend.back(too_fast.rotate(x, [3]))).all()
        message = f"positions has fractions.* at most 4096 .*got {1.01 * bound:g}"
        for call in (
            lambda r=too_fast: r.rotate(x, fractions),
            lambda r=too_fast: r.cos_sin(fractions, 2, dtype=np.dtype(dtype)),
            lambda r=too_fast: r.at(fractions, like=x),
        ):
            with pytest.raises(RopeError, match=message.replace("+", r"\+")):
                call()


def test_pairs_of_frequency_0_are_left_alone():
    rope = RoPE(scaling=Only((1.0, 0.0, 0.0, 0.0)))
    assert rope.wavelengths(8).tolist() == [2 * np.pi, np.inf, np.inf, np.inf]
    x = np.ones((3, 1, 8), np.float32)
    np.testing.assert_array_equal(rope.rotate(x, [5, 70_000, 1 << 30])[..., 2:], 1.0)


# --- fractions of several components, as of images and videos ------------------------------------

SECTIONS, BASES = (8, 12, 12), (256.0, 10000.0, 1e6)


@pytest.mark.parametrize("denominator", [1, 8, 48, 1024])
def test_fractions_of_components_are_exact(backend, denominator):
    """Positions below 2**20; 4e-7 is promised for frequencies up to 1."""
    rng = np.random.default_rng(denominator)
    most = min(1 << 20, (1 << 24) // denominator)
    positions = rng.integers(-most * denominator, most * denominator, (3, 24)) / denominator
    positions = positions.astype(np.float32)  # which rounds those of 1/48
    if denominator == 1:  # a frame rate makes fractions of frames alone
        positions[0] += np.float32(0.375)
    sections = zip(positions.tolist(), BASES, SECTIONS, strict=True)
    true = [oracles.true_cos_sin(line, base, n) for line, base, n in sections]
    cos, sin = (np.concatenate(tables, axis=1) for tables in zip(*true, strict=True))
    on_device = backend.make(positions)
    for given in (on_device,) if backend.compiles else (positions, on_device):
        check_angles(backend, RoPE.axial(SECTIONS, bases=BASES), given, (cos, sin), 4e-7)
