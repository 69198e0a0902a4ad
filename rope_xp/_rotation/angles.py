r"""Positions to cos and sin, accurate at any position, in the plain array API.

A float32 product ``position * frequency`` loses all its fractional turns by position 10**7. So the
integer part of a position is written in base 2048,

    p = p2 * 2048**2 + p1 * 2048 + p0,

and cos and sin of each digit come from a table that the host computed in float64 and rounded once.
The three rotations are composed by angle addition,

    cos(a + b) = cos a cos b - sin a sin b,    sin(a + b) = sin a cos b + cos a sin b.

``take``, ``*`` and ``+`` of float32 suffice, so every library, device and compiler gives the same
bits. A fractional part is one more rotation, by an angle small enough for float32, see
:mod:`rope_xp._rotation.fractions`.

Middle and high tables of float64 hold cos b - 1, so that a rotation by a small angle rounds little.
docs/accuracy.md proves the bounds of the errors.
"""

from rope_xp._core.call import DIGIT, DIGIT_BITS, LIMIT, AngleSource, CosSin, TableLookup
from rope_xp._core.dtypes import NARROW
from rope_xp._core.protocols import ArrayLibrary
from rope_xp._core.typing import Array
from rope_xp._rotation import fractions
from rope_xp._rotation.tables import TOP_DIGIT


def cos_sin(library: ArrayLibrary, source: AngleSource) -> tuple[Array, Array]:
    """Return cos and sin, each (batch..., tokens, r/2), in the dtype of the tables.

    With several position components each frequency has those of the component that it reads.
    """
    if isinstance(source, CosSin):
        xp, tables = library.xp, (source.cos, source.sin)
        narrow = [library.dtype_name(table) in NARROW for table in tables]
        cos, sin = (
            xp.astype(t, xp.float32) if n else t for t, n in zip(tables, narrow, strict=True)
        )
        return cos, sin
    whole, part = source.whole, source.part
    if whole is None:  # in all components
        return _look_up(library, source, library.arange(source.tokens, source.device), None)
    if not source.components:
        return _look_up(library, source, whole, part)
    for c in range(source.components):
        new = _look_up(library, source, whole[c, ...], None if part is None else part[c, ...])
        if c == 0:
            cos, sin = new
            continue
        reads = with_axes(source.tables.component == c, len(cos.shape))
        cos, sin = (library.xp.where(reads, *x) for x in zip(new, (cos, sin), strict=True))
    return cos, sin


def subtract(
    library: ArrayLibrary, new: tuple[Array, Array], old: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return cos and sin of the angles of ``new`` minus those of ``old``."""
    axes = max(len(table.shape) for table in (*new, *old))
    cos, sin, old_cos, old_sin = (with_axes(table, axes) for table in (*new, *old))
    return _compose(library, cos, sin, old_cos, -old_sin)


def _look_up(
    library: ArrayLibrary, lookup: TableLookup, whole: Array, part: Array | None
) -> tuple[Array, Array]:
    xp, position_range = library.xp, lookup.position_range
    tables, low = lookup.tables, lookup.tables.low
    double = library.dtype_name(low) == "float64"
    compose = _compose_cosm1 if double else _compose
    series = fractions.DOUBLE if double else fractions.SINGLE
    outside = None
    if not position_range.checked:
        # Before abs, which C leaves undefined for the most negative integer: a compiler may drop
        # later tests for negative numbers, and read beside the table.
        outside = (whole <= -LIMIT) | (whole > LIMIT - 1)
        whole = xp.where(outside, xp.zeros_like(whole), whole)
    size = xp.abs(whole) if position_range.signed else whole
    digits = position_range.digits
    cos, sin = _row(library, low, size & (DIGIT - 1) if digits > 1 else size)
    if digits > 1:
        digit = size >> DIGIT_BITS
        digit = digit & (DIGIT - 1) if digits > 2 else digit
        cos, sin = compose(library, cos, sin, *_row(library, tables.middle, digit))
    if digits > 2:
        digit = size >> (2 * DIGIT_BITS)
        if outside is not None:
            digit = xp.where(outside, xp.full_like(digit, TOP_DIGIT), digit)
        cos, sin = compose(library, cos, sin, *_row(library, tables.high, digit))
    if position_range.signed:
        sin = xp.where((whole < 0)[..., None], -sin, sin)
    if part is not None:
        part = xp.astype(part, low.dtype, copy=False)
        angle = part[..., None] * with_axes(tables.frequencies, len(part.shape) + 1)
        cos, sin = _compose_cosm1(library, cos, sin, *fractions.cosm1_sin(xp, angle, series))
    return cos, sin


def with_axes(x: Array, axes: int) -> Array:
    """Return x with leading axes of length 1 added, as jax may be set to reject broadcasting."""
    missing = axes - len(x.shape)
    return x[(*(None,) * missing, ...)] if missing else x


def _row(library: ArrayLibrary, table: Array, digits: Array) -> tuple[Array, Array]:
    rows = library.take_rows(table, digits)
    half = table.shape[1] // 2
    return rows[..., :half], rows[..., half:]


def _compose(
    library: ArrayLibrary, cos_a: Array, sin_a: Array, cos_b: Array, sin_b: Array
) -> tuple[Array, Array]:
    mul = library.multiply_exactly
    return mul(cos_a, cos_b) - mul(sin_a, sin_b), mul(sin_a, cos_b) + mul(cos_a, sin_b)


def _compose_cosm1(
    library: ArrayLibrary, cos: Array, sin: Array, cosm1_b: Array, sin_b: Array
) -> tuple[Array, Array]:
    """Compose, given cos b - 1: products with a small angle have small rounding errors."""
    cos_change, sin_change = _compose(library, cos, sin, cosm1_b, sin_b)
    return cos + cos_change, sin + sin_change
