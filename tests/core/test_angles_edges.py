"""Angles at the edges: out of range, beside a digit, of bases, dtypes and rules that are rare."""

from __future__ import annotations

import numpy as np
import pytest
from support import oracles
from support.equality import check_angles
from support.oracles import BELOW_2_22, BELOW_2_31
from support.targets import Target, numpy_dtype, truth

from rope_xp import RoPE
from rope_xp.scaling import Scaling


def test_positions_out_of_range(backend: Target) -> None:
    """On the host an error; on a device, which is not read, NaN: loud, and never a guess."""
    for bad in (
        [0.5 - (1 << 31)],
        [1 << 31],
        [-(1 << 31)],
        [float("nan")],
        [float("inf")],
        [1e300],
    ):
        x = backend.make(np.ones((1, 1, 8), np.float32))
        with pytest.raises(ValueError, match="positions must be finite and of modulus below"):
            RoPE().rotate(x, bad)
    if backend.name in ("torch", "torch-llvm", "torch-triton"):  # the last one interpreted
        for far in ([np.nan, 0.0, 0.0], [1 << 31, 0, 0]):
            with pytest.raises(ValueError, match="positions must be finite and of modulus below"):
                RoPE().rotate(
                    backend.make(np.ones((3, 1, 8), np.float32)), backend.make(np.array(far))
                )
        return
    if backend.module == "numpy":
        return
    x = backend.make(np.ones((3, 1, 8), np.float32))
    outside = np.array([np.nan, np.inf, 2.0**31], np.float32)
    assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(outside)))).all()
    least = np.array([np.iinfo(np.int32).min] * 3, np.int32)
    assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(least)))).all()
    beyond = [np.array([1 << 31, (1 << 31) + 1, (1 << 32) - 1], np.uint32)]
    if "float64" in backend.floats:  # jax without x64 has no 64-bit integers either
        beyond.append(np.array([1 << 31, 1 << 40, -(1 << 31)]))
        beyond.append(np.array([1 << 31, (1 << 63) + 1, (1 << 64) - 1], np.uint64))
    for dtype in {"float32", "float64"} & set(backend.floats):
        x = backend.make(np.ones((3, 1, 8), dtype))
        for far in beyond:
            got = backend.back(backend.run(RoPE().rotate, x, backend.make(far)))
            assert np.isnan(got).all()


EDGES = [1, 2046, 2047, 2048, 2049, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, (1 << 31) - 1]


@pytest.mark.parametrize("position", [sign * edge for edge in EDGES for sign in (1, -1)])
def test_each_number_of_digits_alone(backend: Target, position: int) -> None:
    """The host counts the digits that positions need: one too few is a wrong angle or an error."""
    true = oracles.true_cos_sin([position], 1e4, 16)
    for given in ([position], np.array([position], np.int32), np.array([position], np.float64)):
        check_angles(backend, RoPE(), given, true, BELOW_2_31)


@pytest.mark.parametrize("tokens", [2047, 2048, 2049, 2050])
def test_counted_positions_around_a_digit(backend: Target, tokens: int) -> None:
    x = np.zeros((tokens, 1, 4), np.float32)
    x[..., ::2] = 1.0
    got = backend.back(RoPE().rotate(backend.make(x)))[-1, 0]
    cos, sin = oracles.true_cos_sin([tokens - 1], 1e4, 4)
    assert np.abs(got[::2] - cos[0]).max() <= BELOW_2_22
    assert np.abs(got[1::2] - sin[0]).max() <= BELOW_2_22


def test_low_precision_positions(backend: Target) -> None:
    """Whole numbers in 16-bit floats are whole numbers; fractions are what the dtype holds."""
    for dtype in ("float16", "bfloat16"):
        positions = np.array([0, 1.5, 100, -3]).astype(numpy_dtype(dtype))
        x = np.ones((4, 1, 8), np.float32)
        expected = truth(RoPE().rotate, x, positions.astype(np.float64))
        np.testing.assert_array_equal(truth(RoPE().rotate, x, positions), expected)
        if dtype in backend.floats:
            got = backend.run(RoPE().rotate, backend.make(x), backend.make(positions))
            np.testing.assert_allclose(backend.back(got), expected, rtol=0, atol=1e-6)


def test_fast_pairs_of_a_small_base(backend: Target) -> None:
    """A base below 1 makes frequencies above 1: nothing assumes slow pairs."""
    positions = [0, 3, 70_000, 70_000.5, -12_345]
    true = oracles.true_cos_sin(positions, 0.01, 8)
    check_angles(backend, RoPE(base=0.01), positions, true, 4e-6)


def test_pairs_that_never_turn() -> None:
    """Proportional rules leave the last pairs alone: no warning, no rotation."""
    rope = RoPE(scaling=Still())
    assert rope.wavelengths(8).tolist() == [2 * np.pi, np.inf, np.inf, np.inf]
    x = np.ones((3, 1, 8), np.float32)
    np.testing.assert_array_equal(rope.rotate(x, [5, 70_000, 1 << 30])[..., 2:], 1.0)


class Still(Scaling):
    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.eye(rotary_dim // 2)[0]
