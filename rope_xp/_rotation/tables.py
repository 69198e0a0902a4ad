"""Digit tables: cos and sin of each digit, computed on the host in float64, rounded once."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.caches import cached_tables
from rope_xp._core.call import DIGIT, LIMIT
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import check_positive
from rope_xp._core.protocols import Rope
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._rotation import fractions
from rope_xp._rotation.frequencies import remainders

TOP_DIGIT = LIMIT // (DIGIT * DIGIT)
"""Number of values of the highest digit, and the row for positions out of range."""
INNER = 32
"""Base of two smaller digits of a digit."""
LARGEST = float(np.finfo(np.float32).max)


@cached_tables
def host_tables(table_key: TableKey) -> DigitTables:
    """Return the tables of a key, in numpy."""
    rope = table_key.rope
    frequencies = checked_frequencies(rope, table_key.head_dim)
    axes = rope.position_axes
    component = None if axes is None else _read_only(np.asarray(axes, np.int32))
    factor = 1.0 / rope.attention_factor if table_key.inverse else rope.attention_factor
    # float64 frequencies of a scaling are exact by definition; those of the formula are rounded.
    rest = 0.0 * frequencies
    if rope.scaling is None:
        rest = remainders(rope.base, 2 * len(frequencies))
    # Near 2**31 the rounding of digit * frequency alone would cost 1.2e-7. Half of a frequency's
    # bits (Veltkamp's splitting, Dekker 1971, doi 10.1007/BF01397083) times a digit is exact, and
    # the product with the other half is small.
    shifted = frequencies * 134217729.0
    coarse = shifted - (shifted - frequencies)
    fine = (frequencies - coarse) + rest
    # The factor goes into one table before rounding, which costs no accuracy.
    split, double = (coarse, fine), table_key.double
    low = _digit_table(split, DIGIT, 1, double=double, cosm1=False) * factor
    middle = _digit_table(split, DIGIT, DIGIT, double=double, cosm1=double)
    high = _digit_table(split, TOP_DIGIT, DIGIT * DIGIT, double=double, cosm1=double)
    # The row of positions out of range.
    high = np.concatenate([high, np.full_like(high[:1], np.nan)])
    dtype = np.float64 if double else np.float32
    bound = (fractions.DOUBLE if double else fractions.SINGLE).largest
    reduced = np.where(np.abs(frequencies) <= bound, frequencies, np.nan)
    tables = (_read_only(t.astype(dtype, copy=False)) for t in (low, middle, high, reduced))
    return DigitTables(*tables, component)  # type: ignore[call-arg]  # four tables


def checked_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Return the frequencies of a rope, after checks that tables can hold its numbers."""
    frequencies = rope.frequencies(head_dim)
    factor = float(rope.attention_factor)
    check_positive("attention_factor", factor)
    fastest = "its fastest frequency", float(np.abs(frequencies).max())
    factors = ("its attention_factor", factor), ("1 / attention_factor", 1.0 / factor)
    for name, value in (fastest, *factors):
        if value > LARGEST:
            raise RopeError(f"{rope!r}: {name} is {value:g}, beyond float32's {LARGEST:g}")
    return frequencies


def table_shapes(pairs: int, components: int) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of the fields of DigitTables."""
    low, high = (DIGIT, 2 * pairs), (TOP_DIGIT + 1, 2 * pairs)
    return low, low, high, (pairs,), (pairs,) if components else None


Split: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Coarse and fine parts of frequencies. Products of digits and coarse parts are exact."""


def _digit_table(split: Split, rows: int, unit: int, *, double: bool, cosm1: bool) -> np.ndarray:
    """Return cos (or cos - 1) and sin of digit * unit for the digits below ``rows``."""
    if double:
        cos, sin = _cos_sin(split, rows, unit)
        if cosm1:  # which keeps more digits than cos
            _, half_sin = _cos_sin((split[0] / 2, split[1] / 2), rows, unit)
            cos = -2 * half_sin * half_sin
        return np.concatenate([cos, sin], axis=1)
    # Angle addition of two smaller digits is 20 times as fast, and off by 2e-16 at most.
    inner_cos, inner_sin = _cos_sin(split, INNER, unit)
    outer_cos, outer_sin = (x[:, None] for x in _cos_sin(split, rows // INNER, unit * INNER))
    cos = outer_cos * inner_cos - outer_sin * inner_sin
    sin = outer_sin * inner_cos + outer_cos * inner_sin
    return np.concatenate([cos, sin], axis=2).reshape(rows, -1)


def _cos_sin(split: Split, rows: int, unit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    coarse, fine = split
    digits = np.arange(rows, dtype=np.float64)[:, None] * unit
    cos, sin = np.cos(digits * coarse), np.sin(digits * coarse)
    # cos - 1 of a small angle has products with small rounding errors.
    cosm1, sin_f = -2 * np.sin(digits * fine / 2) ** 2, np.sin(digits * fine)
    return cos + (cos * cosm1 - sin * sin_f), sin + (sin * cosm1 + cos * sin_f)


def _read_only(table: np.ndarray) -> np.ndarray:
    """Return a read-only view of a writeable base, as torch warns of read-only memory."""
    view = table.view()
    view.setflags(write=False)
    return view
