"""Digit tables: cos and sin of each digit, computed on the host in float64, rounded once."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.caches import cached_tables
from rope_xp._core.call import DIGIT, LIMIT
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import check_positive
from rope_xp._core.protocols import Rope
from rope_xp._core.tables import DigitTables, SmallTables, TableKey
from rope_xp._rotation import fractions
from rope_xp._rotation.frequencies import remainders

TOP_DIGIT = LIMIT // (DIGIT * DIGIT)
"""Number of values of the highest digit, and the row for positions out of range."""
INNER = 32
"""Base of two smaller digits of a digit."""
LARGEST = float(np.finfo(np.float32).max)
_HIGH = TOP_DIGIT, DIGIT * DIGIT
Split: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Coarse and fine parts of frequencies. Products of digits and coarse parts are exact."""


@cached_tables
def host_tables(table_key: TableKey) -> DigitTables:
    """Return the tables of a key, in numpy."""
    if not table_key.double:
        return _expand(_compute_small(table_key))
    split, factor, reduced, component = _read_rope(table_key)
    # The factor goes into one table before rounding, which costs no accuracy.
    low = np.concatenate(_cos_sin(split, DIGIT, 1), axis=1) * factor
    middle, high = (_cosm1_sin(split, *rows) for rows in ((DIGIT, DIGIT), _HIGH))
    tables = map(_read_only, (low, middle, _with_nan(high), reduced))
    return DigitTables(*tables, component)  # type: ignore[call-arg]  # four tables


@cached_tables
def small_tables(table_key: TableKey) -> SmallTables:
    """Return the small tables of a key, from which each row of tables in float32 is computed."""
    return _compute_small(table_key)


def _compute_small(table_key: TableKey) -> SmallTables:
    split, factor, reduced, component = _read_rope(table_key)
    inner, outer = [], []
    for rows, unit in ((DIGIT, 1), (DIGIT, DIGIT), _HIGH):
        inner.append(np.concatenate(_cos_sin(split, INNER, unit), axis=1))
        outer.append(np.concatenate(_cos_sin(split, rows // INNER, unit * INNER), axis=1))
    tables = (_read_only(np.concatenate(table)) for table in (inner, outer))
    return SmallTables(*tables, reduced, component, factor)  # type: ignore[call-arg,arg-type]  # two tables


def _expand(small: SmallTables) -> DigitTables:
    """Return all rows."""
    # Angle addition of two smaller digits is 20 times as fast, and off by 2e-16 at most.
    tables, start, pairs = [], 0, small.inner.shape[1] // 2
    # The factor goes into one table before rounding, which costs no accuracy.
    for i, (rows, factor) in enumerate(((DIGIT, small.factor), (DIGIT, 1.0), (TOP_DIGIT, 1.0))):
        count = rows // INNER
        inner_cos, inner_sin = np.split(small.inner[INNER * i : INNER * (i + 1)], 2, axis=1)
        outer = small.outer[start : start + count, None]
        outer_cos, outer_sin = np.split(outer, 2, axis=2)
        table = np.empty((rows, 2 * pairs), np.float32)
        split = table.reshape(count, INNER, 2 * pairs)
        split[..., :pairs] = (outer_cos * inner_cos - outer_sin * inner_sin) * factor
        split[..., pairs:] = (outer_sin * inner_cos + outer_cos * inner_sin) * factor
        tables.append(table)
        start += count
    low, middle, high = tables
    rounded = map(_read_only, (low, middle, _with_nan(high)))
    return DigitTables(*rounded, small.frequencies, small.component)  # type: ignore[call-arg]  # three tables


def _with_nan(high: np.ndarray) -> np.ndarray:
    """Return the highest table with the row of positions out of range."""
    return np.concatenate([high, np.full_like(high[:1], np.nan)])


def _read_rope(
    table_key: TableKey,
) -> tuple[Split, float, NDArray[Any], NDArray[np.int32] | None]:
    """Return the frequencies of a rope in two parts, its factor, and what tables have as it is."""
    rope = table_key.rope
    frequencies = checked_frequencies(rope, table_key.head_dim)
    axes = rope.position_axes
    component = None if axes is None else _read_only(np.asarray(axes, np.int32))
    factor = float(rope.attention_factor)
    # float64 frequencies of a scaling are exact by definition; those of the formula are rounded.
    rest = 0.0 * frequencies
    if rope.scaling is None:
        rest = remainders(rope.base, 2 * len(frequencies))
    # Near 2**31 the rounding of digit * frequency alone would cost 1.2e-7. Half of a frequency's
    # bits (Veltkamp's splitting, Dekker 1971, doi 10.1007/BF01397083) times a digit is exact, and
    # the product with the other half is small.
    shifted = frequencies * 134217729.0
    coarse = shifted - (shifted - frequencies)
    split = coarse, (frequencies - coarse) + rest
    bound = (fractions.DOUBLE if table_key.double else fractions.SINGLE).largest
    reduced = np.where(np.abs(frequencies) <= bound, frequencies, np.nan)
    reduced = _read_only(reduced.astype(np.float64 if table_key.double else np.float32))
    return split, 1.0 / factor if table_key.inverse else factor, reduced, component


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


def _cosm1_sin(split: Split, rows: int, unit: int) -> NDArray[np.float64]:
    """Return cos - 1 and sin of digit * unit; the first keeps more digits than cos."""
    _, sin = _cos_sin(split, rows, unit)
    _, half_sin = _cos_sin((split[0] / 2, split[1] / 2), rows, unit)
    return np.concatenate([-2 * half_sin * half_sin, sin], axis=1)


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
