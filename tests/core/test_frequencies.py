"""apply_frequencies on every backend: against mpmath, a formula in float64, other backends."""

from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.oracles import exact_cos_sin, rotate_complex
from support.targets import TARGETS, Target, rows

from rope_xp import RoPE, RopeError, apply_frequencies
from rope_xp._frequencies import initial_frequencies
from rope_xp.scaling import YaRN

# Proved in rope_xp/_rotation/products.py, for one component.
BOUND = {"float32": 3.2e-7, "float64": 4e-16}
POSITIONS = [0, 1, -1, 2047, 2048, 999_983, 1_000_000, -1_000_003, (1 << 31) - 1, 1 - (1 << 31)]
FREQUENCIES = np.concatenate(
    [10000.0 ** -(np.arange(12) / 12) * 1.37, [0.0, -0.7, 3.3, 1e-7, 15707.96, 2.0**20 - 1]]
)


def true_cos_sin(positions: Any, frequencies: np.ndarray) -> np.ndarray:
    return np.concatenate(exact_cos_sin(tuple(positions), tuple(frequencies.tolist())), axis=-1)


def cos_sin(backend: Target, positions: Any, frequencies: Any, dtype: str) -> np.ndarray:
    """Return cosines beside sines by which a backend rotates pairs (1, 0)."""
    x = np.zeros((len(positions), 1, 2 * frequencies.shape[-1]), dtype)
    x[..., : frequencies.shape[-1]] = 1

    def rotate(x: Any, f: Any) -> Any:
        return apply_frequencies(x, x, positions, f, layout="half")[0]

    return backend.back(backend.run(rotate, backend.make(x), frequencies))[:, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_apply_frequencies_is_within_the_bound_at_any_position(backend, dtype):
    frequencies = FREQUENCIES.astype(dtype)
    tables = cos_sin(backend, POSITIONS, backend.make(frequencies), dtype)
    assert tables.dtype == dtype
    assert np.abs(tables - true_cos_sin(POSITIONS, frequencies)).max() <= BOUND[dtype]
    if not backend.ulps:
        np.testing.assert_array_equal(tables, cos_sin(TARGETS[0], POSITIONS, frequencies, dtype))


@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
@pytest.mark.parametrize("dtype", BOUND)
def test_apply_frequencies_of_fractions_and_of_float64_is_exact(backend, dtype, rng):
    fractions = rng.uniform(-1, 1, 20) * np.resize([1.0, 1e-7, 1000.0], 20)
    frequencies = FREQUENCIES * (1 + 1e-9)  # whose digits float32 has not
    for positions in (POSITIONS, fractions, fractions.astype("f4"), fractions.astype("f2")):
        expected = true_cos_sin(list(map(float, positions)), frequencies)
        for made in (frequencies, backend.make(frequencies)):
            tables = cos_sin(backend, positions, made, dtype)
            # Beyond 2**-23, or 2**-44, a position is multiplied as it is: an ulp of that angle.
            assert np.abs(tables - expected).max() <= 1.5 * BOUND[dtype]


CASES = (
    ("half", (8,), "bshd", "(s,)"),
    ("interleaved", (2, 8), "bhsd", "fractions"),
    ("interleaved_to_half", (1, 8), "sbhd", "(b, s)"),
    ("half", (3, 2, 3), "sbhd", "fractions"),
    ("interleaved", (3, 1, 8), "hbsd", "(s,)"),
)


def rotate_in_float64(x: np.ndarray, positions: Any, f: np.ndarray, layout: str) -> np.ndarray:
    f, p = np.asarray(f, np.float64), np.asarray(positions, np.float64)
    if f.ndim < 3:
        f, p = f.reshape(1, -1, f.shape[-1]), p[None]
    p = np.broadcast_to(p if p.ndim == 3 else p[:, None], (len(p), *x.shape[:2]))
    angles = np.einsum("cbs,chp->bshp", p, f)
    return rotate_complex(x, np.repeat(angles, x.shape[2] // f.shape[1], axis=2), layout)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_apply_frequencies_of_every_shape_equals_complex_multiplication(backend, case, rng):
    layout, shape, axes, kind = case
    pair = rng.standard_normal((2, 5, 4, 20), "f4"), rng.standard_normal((2, 5, 2, 20), "f4")
    frequencies = rng.standard_normal(shape, "f4")
    at = (*shape[:-2], 5) if kind == "(s,)" else (*shape[:-2], 2, 5)
    listed = (rng.integers(-9, 90, at) + 0.25 * (kind == "fractions")).tolist()
    order = ["bshd".index(name) for name in axes]
    arrays = [backend.make(x.transpose(order).copy()) for x in pair]
    # Dynamo (seen in torch 2.13) may fail where a library is first seen while it traces.
    RoPE().rotate(arrays[0], axes=axes)
    results = backend.run(
        lambda q, k, f: apply_frequencies(q, k, listed, f, layout=layout, axes=axes),
        *(*arrays, backend.make(frequencies)),
    )
    for x, y in zip(pair, results, strict=True):
        expected = rotate_in_float64(x, listed, frequencies, layout).transpose(order)
        # Angles below 9 * 90: 3e-7 for each component, of |x| below 5, and the rounding.
        assert np.abs(backend.back(y) - expected).max() < 8e-6


@pytest.mark.parametrize("heads", [1, 2])
def test_initial_frequencies_rotate_as_their_rope(heads, rng):
    q, k = rng.standard_normal((1, 6, 4, 16)), rng.standard_normal((1, 6, 2, 16))
    for axes in (None, (0, 1, 1, 0, 2, 2, 2, 0)):
        rope = RoPE(layout="half", position_axes=axes)
        positions = rng.integers(0, 10**6, (6,) if axes is None else (3, 6))
        learned = initial_frequencies(rope, 16, heads)
        results = apply_frequencies(q, k, positions, learned, layout="half")
        for result, expected in zip(results, rope.apply(q, k, positions), strict=True):
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-8)  # RoPEs: more digits
    for rope in (RoPE(rotary_dim=8, rotary_offset=-8), RoPE(scaling=YaRN(4.0, 4096))):
        with pytest.raises(RopeError, match="learned frequencies need rotary_offset"):
            initial_frequencies(rope, 16)


def test_apply_frequencies_in_place_counts_positions_that_are_not_given(rng):
    for f in (rng.standard_normal(4), rng.standard_normal((2, 4))):
        q, k = rng.standard_normal((2, 5, 4, 8)), rng.standard_normal((2, 5, 2, 8))
        expected = apply_frequencies(q, k, [range(5)] * 2, f, layout="half")
        results = apply_frequencies(q, k, None, f, layout="half", out=(q, k))
        for x, result, right in zip((q, k), results, expected, strict=True):
            assert x is result
            np.testing.assert_array_equal(result, right)


def test_apply_frequencies_out_of_range_on_a_device_gives_nan():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 1, 4)
    far = torch.tensor([0, 1 << 31, -(1 << 31)])
    for positions in (far, far.double(), torch.tensor([0, torch.inf, torch.nan])):
        y, _ = apply_frequencies(x, x, positions, torch.ones(2), layout="half")
        assert y.isnan().all(dim=-1)[:, 0].tolist() == [False, True, True]
    y, _ = apply_frequencies(x, x, None, torch.tensor([1.0, 2.0**20]), layout="half")
    assert y.isnan()[0, 0].tolist() == [False, True, False, True]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(16,), (2, 16), (3, 2, 16)])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_apply_frequencies_has_the_bits_of_plain_operations(library, shape, dtype, rng):
    """Which array_api_strict runs, for which there is no native function."""
    put, plain = map(pytest.importorskip, (library, "array_api_strict"))
    q, k = (sample(rng, 2, 5, heads, 32) for heads in (4, 2))
    frequencies = (rng.standard_normal(shape) * 10.0 ** rng.integers(-5, 5, shape)).astype("f4")
    frequencies.flat[:3] = 0, 1 << 19, -1e-30
    largest = 1 << (6 if dtype == "int8" else 31)
    for lead in ((5,), (2, 5)):
        positions = rng.uniform(-largest, largest, (*shape[:-2], *lead)).astype(dtype)
        positions.flat[:2] = 0, -1
        got, expected = (
            apply_frequencies(*map(xp.asarray, (q, k, positions, frequencies)), layout="half")
            for xp in (put, plain)
        )
        same(tuple(map(np.asarray, got)), tuple(map(np.asarray, expected)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_apply_frequencies_of_float32_turns_float64_arrays_in_float64(library):
    xp = pytest.importorskip(library)
    q = xp.ones((1, 2, 1, 8), dtype=xp.float64)
    frequencies, position = np.array([1, 0.1, 0.01, 0.001], np.float32), 70_000
    given = frequencies if library == "numpy" else xp.from_numpy(frequencies)
    rotated = apply_frequencies(q, q, [0, position], given, layout="half")[0]
    cos, sin = exact_cos_sin((position,), tuple(map(float, frequencies)))
    expected = np.concatenate([cos - sin, sin + cos], axis=-1)[0].astype(np.float64)
    np.testing.assert_allclose(np.asarray(rotated)[0, 1, 0], expected, rtol=0, atol=2e-15)
