"""The tables that angles are looked up in: made on the host in float64, rounded once."""

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract.caches import kept_tables
from rope_xp._contract.call import DIGIT, LIMIT
from rope_xp._contract.errors import RopeError
from rope_xp._contract.library import Digits, Recipe, Rope
from rope_xp._contract.numbers import check_positive
from rope_xp._rotation.frequencies import remainders

TOP_DIGIT = LIMIT // (DIGIT * DIGIT)
"""How many values the highest digit has; the row of this number is for positions out of range."""

LARGEST = float(np.finfo(np.float32).max)


@kept_tables
def host_tables(recipe: Recipe) -> Digits:
    """Return what angles are looked up in, in numpy."""
    rope = recipe.rope
    frequencies = checked_frequencies(rope, recipe.head_dim)
    component = None
    if rope.position_axes is not None:
        component = _read_only(np.asarray(rope.position_axes, np.int32))
    factor = 1.0 / rope.attention_factor if recipe.inverse else rope.attention_factor
    # What a scaling rule returns is exact by definition; the plain formula has digits beyond.
    beyond = 0.0 * frequencies
    if rope.scaling is None:
        beyond = remainders(rope.base, 2 * len(frequencies))
    # Near 2**31 the rounding of digit * frequency alone would cost 1.2e-7. Half of a frequency's
    # bits (Veltkamp's splitting, Dekker 1971, doi 10.1007/BF01397083) times a digit is exact; what
    # is left is small enough to be rounded.
    shifted = frequencies * 134217729.0
    coarse = shifted - (shifted - frequencies)
    fine = (frequencies - coarse) + beyond
    # The factor goes into one table, before rounding: it costs no accuracy.
    low = np.concatenate(_table(coarse, fine, DIGIT, 1), axis=1) * factor
    middle = _turned_by(coarse, fine, DIGIT, DIGIT, recipe.wide)
    high = _turned_by(coarse, fine, TOP_DIGIT, DIGIT * DIGIT, recipe.wide)
    # One row more, read by every position out of range: better loud than plausible.
    high = np.concatenate([high, np.full_like(high[:1], np.nan)])
    dtype = np.float64 if recipe.wide else np.float32
    made = [_read_only(t.astype(dtype, copy=False)) for t in (low, middle, high, frequencies)]
    return Digits(made[0], made[1], made[2], made[3], component)


def checked_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Return the frequencies of a rope, all of whose numbers are found to be good for tables."""
    frequencies = rope.frequencies(head_dim)
    factor = float(rope.attention_factor)
    check_positive("attention_factor", factor)
    for name, value in (
        ("its fastest frequency", float(np.abs(frequencies).max())),
        ("its attention_factor", factor),
        ("1 / attention_factor", 1.0 / factor),
    ):
        if value > LARGEST:
            msg = f"{rope!r} has no tables: {name} is {value:g}, beyond float32's {LARGEST:g}"
            raise RopeError(msg)
    return frequencies


def table_shapes(pairs: int, components: int) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of what is in Digits."""
    component = (pairs,) if components else None
    return (DIGIT, 2 * pairs), (DIGIT, 2 * pairs), (TOP_DIGIT + 1, 2 * pairs), (pairs,), component


def _turned_by(
    coarse: NDArray[np.float64], fine: NDArray[np.float64], rows: int, unit: int, wide: bool
) -> NDArray[np.float64]:
    """Return the table of a digit that a turn is composed with."""
    cos, sin = _table(coarse, fine, rows, unit)
    if wide:  # cos b - 1, which has more digits so
        _, half = _table(coarse / 2, fine / 2, rows, unit)
        cos = -2 * half * half
    return np.concatenate([cos, sin], axis=1)


def _table(
    coarse: NDArray[np.float64], fine: NDArray[np.float64], rows: int, unit: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    digits = np.arange(rows, dtype=np.float64)[:, None] * unit
    cos, sin = np.cos(digits * coarse), np.sin(digits * coarse)
    # By cos - 1 of what is small, so that its products round little.
    versed, sin_f = -2 * np.sin(digits * fine / 2) ** 2, np.sin(digits * fine)
    return cos + (cos * versed - sin * sin_f), sin + (sin * versed + cos * sin_f)


def _read_only(table: np.ndarray) -> np.ndarray:
    table.setflags(write=False)
    return table
