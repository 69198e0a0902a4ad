"""The tables that angles are looked up in: made on the host in float64, rounded once."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.caches import cached_tables
from rope_xp._core.call import DIGIT, LIMIT
from rope_xp._core.errors import RopeError
from rope_xp._core.library import DigitTables, Rope, TableKey
from rope_xp._core.numbers import check_positive
from rope_xp._rotation.frequencies import remainders

TOP_DIGIT = LIMIT // (DIGIT * DIGIT)
"""How many values the highest digit has; the row of this number is for positions out of range."""

INNER = 32
"""The base of the two smaller digits that a digit is made of."""
LARGEST = float(np.finfo(np.float32).max)


@cached_tables
def host_tables(table_key: TableKey) -> DigitTables:
    """Return what angles are looked up in, in numpy."""
    rope = table_key.rope
    frequencies = checked_frequencies(rope, table_key.head_dim)
    component = None
    if rope.position_axes is not None:
        component = _read_only(np.asarray(rope.position_axes, np.int32))
    factor = 1.0 / rope.attention_factor if table_key.inverse else rope.attention_factor
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
    split, double = (coarse, fine), table_key.double
    low = _digit_table(split, DIGIT, 1, double=double, cosm1=False) * factor
    middle = _digit_table(split, DIGIT, DIGIT, double=double, cosm1=double)
    high = _digit_table(split, TOP_DIGIT, DIGIT * DIGIT, double=double, cosm1=double)
    # One row more, read by every position out of range: better loud than plausible.
    high = np.concatenate([high, np.full_like(high[:1], np.nan)])
    dtype = np.float64 if double else np.float32
    made = [_read_only(t.astype(dtype, copy=False)) for t in (low, middle, high, frequencies)]
    return DigitTables(made[0], made[1], made[2], made[3], component)


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


Split: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Frequencies as a sum of two parts, of which the first times a digit is exact."""


def _digit_table(split: Split, rows: int, unit: int, *, double: bool, cosm1: bool) -> np.ndarray:
    """Return cos and sin of digit * unit for the digits below ``rows``; cos - 1 with ``cosm1``."""
    if double:
        cos, sin = _cos_sin(split, rows, unit)
        if cosm1:  # which has more digits than cos
            _, half_sin = _cos_sin((split[0] / 2, split[1] / 2), rows, unit)
            cos = -2 * half_sin * half_sin
        return np.concatenate([cos, sin], axis=1)
    # Angles of two digits in a smaller base are added: off by 2e-16 at most, 20 times as fast.
    inner_cos, inner_sin = _cos_sin(split, INNER, unit)
    outer_cos, outer_sin = (x[:, None] for x in _cos_sin(split, rows // INNER, unit * INNER))
    cos = outer_cos * inner_cos - outer_sin * inner_sin
    sin = outer_sin * inner_cos + outer_cos * inner_sin
    return np.concatenate([cos, sin], axis=2).reshape(rows, -1)


def _cos_sin(split: Split, rows: int, unit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    coarse, fine = split
    digits = np.arange(rows, dtype=np.float64)[:, None] * unit
    cos, sin = np.cos(digits * coarse), np.sin(digits * coarse)
    # By cos - 1 of what is small, so that its products round little.
    cosm1, sin_f = -2 * np.sin(digits * fine / 2) ** 2, np.sin(digits * fine)
    return cos + (cos * cosm1 - sin * sin_f), sin + (sin * cosm1 + cos * sin_f)


def _read_only(table: np.ndarray) -> np.ndarray:
    """Return a view. Its base stays writeable, or torch would warn of memory that it shares."""
    view = table.view()
    view.setflags(write=False)
    return view
