"""Fractional positions of images and videos: as exact as whole ones, against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from support.equality import check_angles
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
    positions = grid_of(denominator).astype(np.float32)  # which rounds those of 1/48
    for given in (positions, backend.make(positions)):
        check_angles(backend, ROPE, given, true_tables(positions), BOUND)


def test_one_fraction_beside_whole_components(backend: Target) -> None:
    """A frame rate makes fractions of frames alone; rows and columns are still whole."""
    positions = grid_of(1).astype(np.float32)
    positions[0] += np.float32(0.375)
    check_angles(backend, ROPE, backend.make(positions), true_tables(positions), BOUND)
