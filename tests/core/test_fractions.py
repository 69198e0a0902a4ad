"""Fractional positions of images and videos: as exact as whole ones, against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from support.targets import Target

from rope_xp import RoPE

# What docs/accuracy.md promises for frequencies up to 1.
BOUND = 4e-7
SECTIONS, BASES = (8, 12, 12), (256.0, 10000.0, 1e6)
ROPE = RoPE.axial(SECTIONS, bases=BASES)


def grid_of(denominator: int) -> np.ndarray:
    """Return positions of three components below 2**20 that float32 holds, of such fractions."""
    rng = np.random.default_rng(denominator)
    most = min(1 << 20, (1 << 24) // denominator)
    return rng.integers(-most * denominator, most * denominator, (3, 24)) / denominator


def true_tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin (tokens, pairs), by mpmath with forty digits."""
    columns = []
    with mpmath.workdps(40):
        for line, n, base in zip(positions.tolist(), SECTIONS, BASES, strict=True):
            for j in range(n // 2):
                frequency = mpmath.mpf(base) ** (-mpmath.mpf(2 * j) / n)
                columns.append(
                    [(mpmath.cos(p * frequency), mpmath.sin(p * frequency)) for p in line]
                )
    table = np.array(columns, np.float64)
    return table[..., 0].T, table[..., 1].T


@pytest.mark.parametrize("denominator", [8, 48, 1024])
def test_fractions_of_several_components(backend: Target, denominator: int) -> None:
    positions = grid_of(denominator).astype(
        np.float32
    )  # those of 1/48 are what float32 makes of it
    cos, sin = true_tables(positions)
    x = np.zeros((24, 1, sum(SECTIONS)), np.float32)
    x[..., ::2] = 1.0
    for given in (positions, backend.make(positions)):
        got = backend.back(backend.run(ROPE.rotate, backend.make(x), given))[:, 0]
        assert np.abs(got[:, ::2] - cos).max() <= BOUND
        assert np.abs(got[:, 1::2] - sin).max() <= BOUND


def test_one_fraction_beside_whole_components(backend: Target) -> None:
    """A frame rate makes fractions of frames alone; rows and columns are still whole."""
    positions = grid_of(1).astype(np.float32)
    whole = ROPE.cos_sin(positions.astype(np.int64), sum(SECTIONS))
    positions[0] += np.float32(0.375)
    x = np.zeros((24, 1, sum(SECTIONS)), np.float32)
    x[..., ::2] = 1.0
    got = backend.back(backend.run(ROPE.rotate, backend.make(x), backend.make(positions)))[:, 0]
    rest = slice(SECTIONS[0] // 2, None)
    assert np.abs(got[:, ::2][:, rest] - whole[0][:, rest]).max() <= BOUND
    cos, sin = true_tables(positions)
    assert np.abs(got[:, ::2] - cos).max() <= BOUND
    assert np.abs(got[:, 1::2] - sin).max() <= BOUND
