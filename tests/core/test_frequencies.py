"""apply_frequencies on every backend: against mpmath, a formula in float64, other backends."""

from __future__ import annotations

import re
from typing import Any

import mpmath
import numpy as np
import pytest
from support.targets import Target

import rope_xp
from rope_xp import RopeError, apply_frequencies
from rope_xp._frequencies import initial_frequencies
from rope_xp._rotation import products

YARN = rope_xp.RoPE(scaling=rope_xp.scaling.YaRN(4.0, 4096))
# Proved in rope_xp/_rotation/products.py, for one component.
BOUND = {"float32": 3.2e-7, "float64": 4e-16}
POSITIONS = [0, 1, -1, 2047, 2048, 999_983, 1_000_000, -1_000_003, (1 << 31) - 1, 1 - (1 << 31)]
FREQUENCIES = np.concatenate(
    [10000.0 ** -(np.arange(12) / 12) * 1.37, [0.0, -0.7, 3.3, 1e-7, 15707.96, 2.0**20 - 1]]
)


def true_cos_sin(positions: Any, frequencies: np.ndarray) -> np.ndarray:
    """Return cosines beside sines, of products with fifty digits."""
    with mpmath.workdps(50):
        angles = [[mpmath.mpf(p) * mpmath.mpf(f) for f in frequencies.tolist()] for p in positions]
        return np.array(
            [[*map(float, map(f, row))] for f in (mpmath.cos, mpmath.sin) for row in angles]
        ).reshape(2, len(positions), -1)


def unit_pairs(tokens: int, pairs: int, dtype: str) -> np.ndarray:
    """Return tokens whose every pair is (1, 0), so that a rotation makes it (cos, sin)."""
    x = np.zeros((tokens, 1, 2, pairs), dtype)
    x[:, :, 0] = 1
    return x.reshape(tokens, 1, 2 * pairs)


def cos_sin(backend: Target, positions: Any, frequencies: Any, dtype: str) -> np.ndarray:
    """Return cosines beside sines, as a backend rotates by them."""
    x = backend.make(unit_pairs(len(positions), len(frequencies), dtype))
    f = backend.make(frequencies)
    y = backend.run(lambda x, f: apply_frequencies(x, x, positions, f, layout="half")[0], x, f)
    made = backend.back(y)
    assert made.dtype == dtype
    return made.reshape(len(positions), 2, -1).swapaxes(0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_are_exact_at_any_position(backend: Target, dtype: str) -> None:
    if dtype not in backend.floats:
        pytest.skip(f"{backend} is not tested with {dtype}")
    frequencies = FREQUENCIES.astype(dtype)
    found = cos_sin(backend, POSITIONS, frequencies, dtype)
    error = np.abs(found - true_cos_sin(POSITIONS, frequencies)).max()
    assert error <= BOUND[dtype]
    if not backend.ulps:
        np.testing.assert_array_equal(found, cos_sin_of_numpy(POSITIONS, frequencies, dtype))


def test_the_usual_product_is_far_off() -> None:
    """What the bound is worth: the same frequencies, multiplied in float32."""
    frequencies = FREQUENCIES[:12].astype(np.float32)
    expected = true_cos_sin([1_000_000], frequencies)
    angles = np.float32(1_000_000) * frequencies
    assert np.abs(np.cos(angles) - expected[0, 0]).max() > 1e-2
    found = cos_sin_of_numpy([1_000_000], frequencies)
    assert np.abs(found - expected).max() <= BOUND["float32"]


def cos_sin_of_numpy(positions: Any, frequencies: np.ndarray, dtype: str = "float32") -> Any:
    x = unit_pairs(np.shape(positions)[-1], frequencies.shape[-1], dtype)
    y, _ = apply_frequencies(x, x, positions, frequencies, layout="half")
    return y.reshape(len(x), 2, -1).swapaxes(0, 1)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1000.0])
def test_positions_with_fractions(
    rng: np.random.Generator, kind: type[np.floating[Any]], scale: float
) -> None:
    positions = (rng.uniform(-1, 1, 20) * scale).astype(kind)
    for dtype, bound in BOUND.items():
        frequencies = FREQUENCIES.astype(dtype)
        expected = true_cos_sin(positions.tolist(), frequencies)
        found = cos_sin_of_numpy(positions, frequencies, dtype)
        # Beyond 2**-23, or 2**-44, a position is multiplied as it is: an ulp of that angle.
        assert np.abs(found - expected).max() <= 1.5 * bound


def test_frequencies_have_the_digits_that_they_are_given_with() -> None:
    """Those of float64 are read as such, for angles of float32 too."""
    frequencies = FREQUENCIES * (1 + 1e-9)
    expected = true_cos_sin(POSITIONS, frequencies)
    assert np.abs(cos_sin_of_numpy(POSITIONS, frequencies) - expected).max() <= BOUND["float32"]
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(unit_pairs(len(POSITIONS), len(frequencies), "float32"))
    for given in (frequencies, torch.from_numpy(frequencies)):
        y, _ = apply_frequencies(x, x, POSITIONS, given, layout="half")
        found = y.numpy().reshape(len(POSITIONS), 2, -1).swapaxes(0, 1)
        assert np.abs(found - expected).max() <= BOUND["float32"]


def test_digits_of_a_turn() -> None:
    for base in (products.SINGLE, products.DOUBLE):
        digits = products._get_radian_digits(base.bits, 7)
        with mpmath.workdps(80):
            made = sum(
                mpmath.mpf(d) * mpmath.mpf(2) ** (-base.bits * n) for n, d in enumerate(digits)
            )
            assert abs(made - 1 / (2 * mpmath.pi)) < mpmath.mpf(2) ** (-base.bits * 7)
        assert all(abs(d) <= 2 ** (base.bits - 1) for d in digits)


# --- shapes --------------------------------------------------------------------------------------

CASES = (
    ("half", (8,), "bshd", "(s,)"),
    ("interleaved", (2, 8), "bhsd", "fractions"),
    ("interleaved_to_half", (1, 8), "sbhd", "(b, s)"),
    ("half", (3, 2, 8), "bhsd", "fractions"),
    ("interleaved", (3, 1, 8), "hbsd", "(s,)"),
    ("half", (2, 2, 3), "sbhd", "(b, s)"),
)


def expected(x: np.ndarray, positions: Any, f: np.ndarray, layout: str) -> np.ndarray:
    """Rotate x of (b, s, h, d) in float64, by complex numbers."""
    f, p = np.asarray(f, np.float64), np.asarray(positions, np.float64)
    if f.ndim < 3:
        f, p = f.reshape(1, -1, f.shape[-1]), p[None]
    p = np.broadcast_to(p if p.ndim == 3 else p[:, None], (len(p), *x.shape[:2]))
    angles = np.einsum("cbs,chp->bshp", p, f)
    turn = np.exp(1j * np.repeat(angles, x.shape[2] // f.shape[1], axis=2))
    r = 2 * f.shape[-1]
    y, part = x.astype(np.float64), x[..., :r].astype(np.float64)
    halves = np.split(part, 2, axis=-1)
    z = halves[0] + 1j * halves[1] if layout == "half" else part[..., ::2] + 1j * part[..., 1::2]
    z = z * turn
    if layout == "interleaved":
        y[..., :r:2], y[..., 1:r:2] = z.real, z.imag
    else:
        y[..., :r] = np.concatenate([z.real, z.imag], axis=-1)
    return y


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_axes_and_layouts(
    backend: Target, case: tuple[Any, ...], rng: np.random.Generator
) -> None:
    layout, shape, axes, kind = case
    q, k = rng.standard_normal((2, 5, 4, 20)), rng.standard_normal((2, 5, 2, 20))
    f = rng.standard_normal(shape)
    lead = (shape[0],) if len(shape) == 3 else ()
    positions = rng.integers(-9, 90, (*lead, 5) if kind == "(s,)" else (*lead, 2, 5))
    if kind == "fractions":
        positions = positions + 0.25
    told = positions.tolist()
    order = ["bshd".index(name) for name in axes]
    arrays = [backend.make(x.astype(np.float32).transpose(order).copy()) for x in (q, k)]
    learned = backend.make(f.astype(np.float32))
    # Dynamo (seen in torch 2.13) may fail where a library is first seen while it traces.
    rope_xp.RoPE().rotate(arrays[0], axes=axes)
    found = backend.run(
        lambda q, k, f: apply_frequencies(q, k, told, f, layout=layout, axes=axes),
        *(*arrays, learned),
    )
    for x, y in zip((q, k), found, strict=True):
        wanted = expected(x.astype(np.float32), positions, f.astype(np.float32), layout)
        # Angles below 9 * 90: 3e-7 for each component, of |x| below 5, and the rounding.
        assert np.abs(backend.back(y) - wanted.transpose(order)).max() < 8e-6


def test_positions_are_counted_from_0(rng: np.random.Generator) -> None:
    q, f = rng.standard_normal((2, 5, 4, 8)), rng.standard_normal((2, 4, 4))
    counted, _ = apply_frequencies(q, q, None, f, layout="half")
    given, _ = apply_frequencies(q, q, [range(5)] * 2, f, layout="half")
    np.testing.assert_array_equal(counted, given)


def test_it_is_a_rope_where_frequencies_are_those_of_one(backend: Target) -> None:
    rng = np.random.default_rng(0)
    rope = rope_xp.RoPE(layout="half", rotary_dim=16)
    x = backend.make(rng.standard_normal((2, 5, 4, 20), np.float32))
    positions = [0, 3, 70_000, 1_000_000, 5]
    f = rope.frequencies(20)
    y, _ = apply_frequencies(x, x, positions, f, layout="half")
    own = backend.back(rope.rotate(x, positions))
    # Either is off by 3e-7, and |x| is below 5.
    assert np.abs(backend.back(y) - own).max() < 4e-6


@pytest.mark.parametrize("heads", [1, 2])
def test_learning_starts_from_a_rope(heads: int, rng: np.random.Generator) -> None:
    q, k = rng.standard_normal((1, 6, 4, 16)), rng.standard_normal((1, 6, 2, 16))
    for axes in (None, (0, 1, 1, 0, 2, 2, 2, 0)):
        rope = rope_xp.RoPE(layout="half", position_axes=axes)
        positions = rng.integers(0, 10**6, (6,) if axes is None else (3, 6))
        learned = initial_frequencies(rope, 16, heads)
        assert learned.shape == ((3,) if axes else ()) + ((heads,) if axes or heads > 1 else ()) + (
            8,
        )
        found = apply_frequencies(q, k, positions, learned, layout="half")
        for ours, own in zip(found, rope.apply(q, k, positions), strict=True):
            np.testing.assert_allclose(ours, own, rtol=0, atol=1e-8)  # as RoPEs have more digits
    for rope in (rope_xp.RoPE(rotary_dim=8, rotary_offset=-8), YARN):
        with pytest.raises(RopeError, match="learned for the first components"):
            initial_frequencies(rope, 16)


# --- out and errors ------------------------------------------------------------------------------


def test_in_place(rng: np.random.Generator) -> None:
    for f in (rng.standard_normal(4), rng.standard_normal((2, 4))):
        q, k = rng.standard_normal((2, 5, 4, 8)), rng.standard_normal((2, 5, 2, 8))
        wanted = apply_frequencies(q, k, None, f, layout="half")
        made = apply_frequencies(q, k, None, f, layout="half", out=(q, k))
        for own, found, right in zip((q, k), made, wanted, strict=True):
            assert own is found
            np.testing.assert_array_equal(found, right)


def test_what_is_out_of_range_on_a_device_is_loud() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 1, 4)
    far = torch.tensor([0, 1 << 31, -(1 << 31)])
    for positions in (far, far.double(), torch.tensor([0, torch.inf, torch.nan])):
        y, _ = apply_frequencies(x, x, positions, torch.ones(2), layout="half")
        assert y.isnan().all(dim=-1)[:, 0].tolist() == [False, True, True]
    y, _ = apply_frequencies(x, x, None, torch.tensor([1.0, 2.0**20]), layout="half")
    assert y.isnan()[0, 0].tolist() == [False, True, False, True]


ERRORS = {
    "(r/2,), (heads, r/2)": {"frequencies": np.ones((1, 1, 1, 2))},
    "has shape (0,)": {"frequencies": np.ones(0)},
    "must be finite": {"frequencies": np.array([1.0, np.inf])},
    "below 1.04858e+06": {"frequencies": np.array([1.0, 2e6])},
    "a query and a key that meet must turn": {"frequencies": np.ones((4, 2))},
    "does not lie within head_dim=8": {"frequencies": np.ones(5)},
    "needs a leading axis of 2": {"frequencies": np.ones((2, 1, 2)), "positions": [1, 2, 3]},
    "modulus below": {"positions": [1, 2, 1 << 31]},
    "must broadcast to": {"positions": [1, 2]},
    "layout must be one of": {"layout": "neox"},
    "out[0] overlaps k": {"out": "swapped"},
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words: str) -> None:
    changed = dict(ERRORS[words])
    q, k = np.ones((3, 4, 8)), np.ones((3, 2, 8))
    if changed.get("out") == "swapped":
        k = np.ones((3, 4, 8))
        changed["out"] = (k, q)
    given: dict[str, Any] = {"positions": None, "frequencies": np.ones(2), "layout": "half"}
    with pytest.raises(RopeError, match=re.escape(words)):
        apply_frequencies(q, k, **(given | changed))
    assert (q == 1).all()
    assert (k == 1).all()


def test_errors_of_type() -> None:
    torch = pytest.importorskip("torch")
    x = np.ones((3, 4, 8))
    for given in ({"frequencies": [1.0, 2.0]}, {"frequencies": np.ones(2, int)}):
        with pytest.raises(TypeError, match="frequencies is"):
            apply_frequencies(x, x, None, layout="half", **given)
    with pytest.raises(TypeError, match="q is a numpy array and frequencies a torch array"):
        apply_frequencies(x, x, None, torch.ones(2), layout="half")
    with pytest.raises(TypeError, match="positions must hold integers"):
        apply_frequencies(x, x, ["a"] * 3, np.ones(2), layout="half")
    with pytest.raises(RopeError, match="has no axis of heads"):
        apply_frequencies(x[:, 0], x[:, 0], None, np.ones((2, 2)), layout="half")
