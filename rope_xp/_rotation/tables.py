"""The tables that angles are looked up in: made on the host in float64, rounded once."""

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract.caches import kept
from rope_xp._contract.call import DIGIT, LIMIT
from rope_xp._contract.library import Digits, Recipe, Rope, Tables, Wide
from rope_xp._contract.numbers import check_positive
from rope_xp._rotation.frequencies import remainders

TOP_DIGIT = LIMIT // (DIGIT * DIGIT)
"""How many values the highest digit has; the row of this number is for positions out of range."""


@kept(64)
def host_tables(recipe: Recipe) -> Tables:
    """Return what angles are looked up in, in numpy."""
    rope = recipe.rope
    frequencies = checked_frequencies(rope, recipe.head_dim)
    component = None
    if rope.position_axes is not None:
        component = _read_only(np.asarray(rope.position_axes, np.int32))
    factor = 1.0 / rope.attention_factor if recipe.inverse else rope.attention_factor
    if recipe.wide:
        return Wide(_read_only(frequencies), _read_only(np.asarray(factor)), component)
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
    low = _table(coarse, fine, DIGIT, 1) * factor
    middle = _table(coarse, fine, DIGIT, DIGIT)
    high = _table(coarse, fine, TOP_DIGIT, DIGIT * DIGIT)
    # One row more, read by every position out of range: better loud than plausible.
    high = np.concatenate([high, np.full_like(high[:1], np.nan)])
    made = [_read_only(t.astype(np.float32)) for t in (low, middle, high, frequencies)]
    return Digits(made[0], made[1], made[2], made[3], component)


def checked_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Return the frequencies of a rope, all of whose numbers are found to be good for tables."""
    frequencies = rope.frequencies(head_dim)
    check_positive("attention_factor", float(rope.attention_factor))
    return frequencies


def table_shapes(pairs: int, components: int, wide: bool) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of what is in Digits, or in Wide."""
    component = (pairs,) if components else None
    if wide:
        return (pairs,), (), component
    return (DIGIT, 2 * pairs), (DIGIT, 2 * pairs), (TOP_DIGIT + 1, 2 * pairs), (pairs,), component


def _table(
    coarse: NDArray[np.float64], fine: NDArray[np.float64], rows: int, unit: int
) -> NDArray[np.float64]:
    digits = np.arange(rows, dtype=np.float64)[:, None] * unit
    cos_c, sin_c = np.cos(digits * coarse), np.sin(digits * coarse)
    cos_f, sin_f = np.cos(digits * fine), np.sin(digits * fine)
    cos, sin = cos_c * cos_f - sin_c * sin_f, sin_c * cos_f + cos_c * sin_f
    return np.concatenate([cos, sin], axis=1)


def _read_only(table: np.ndarray) -> np.ndarray:
    table.setflags(write=False)
    return table
