r"""Positions to cos and sin, accurate at any position, in the plain array API.

A float32 product ``position * frequency`` has lost all its fractional turns by position 10**7. Here
the position is never multiplied. Its whole part is written in base 2048,

    p = p2 * 2048**2 + p1 * 2048 + p0,

and the angle of each digit is looked up in a table that was computed on the host in float64 and
rounded once. The three rotations are then composed by the angle-addition identity,

    cos(a + b) = cos a cos b - sin a sin b,    sin(a + b) = sin a cos b + cos a sin b.

This needs ``take``, ``*`` and ``+`` of float32 alone, so it runs on every library, on devices
without float64, under every compiler, and gives the same bits on all of them. A fractional part is
one more rotation, by an angle small enough for float32, see :mod:`rope_xp._rotation.fractions`.

Error, for tables of modulus 1, in units of u = 2**-25. A rounded table entry is off by at most u in
either coordinate, by sqrt(2) u as a vector. One composition adds to a coordinate the rounding of
two products whose moduli sum to at most 1, and of their sum: 3 u, or 3 sqrt(2) u as a vector. So
two digits, all positions below 2**22, are off by at most (2 sqrt(2) + 3) u = 1.74e-7; three, below
2**31, by (3 sqrt(2) + 3 sqrt(2) + 3) u = 3.43e-7. The largest errors that were measured are 1.3e-7
and 2.2e-7.

float64 has tables of its own. There the middle and the high one hold cos b - 1, so that a turn by a
small angle costs one rounding, u = 2**-54 in each coordinate, and its own few: at most
2**-52 (1 + p * frequency) altogether, three fifths of which is the most that was measured.
"""

from rope_xp._core.call import (
    DIGIT,
    DIGIT_BITS,
    LIMIT,
    AngleSource,
    CosSin,
    RelativeAngles,
    TableLookup,
)
from rope_xp._core.library import ArrayLibrary
from rope_xp._core.typing import Array
from rope_xp._rotation import fractions
from rope_xp._rotation.tables import TOP_DIGIT


def cos_sin(library: ArrayLibrary, source: AngleSource) -> tuple[Array, Array]:
    """Return cos and sin, each (batch..., tokens, r/2), in the dtype of the tables.

    With several position components each frequency has those of the component that it reads.
    """
    if isinstance(source, CosSin):
        return source.cos, source.sin
    if isinstance(source, RelativeAngles):
        both = *cos_sin(library, source.new), *cos_sin(library, source.old)
        axes = max(len(table.shape) for table in both)
        cos, sin, old_cos, old_sin = (with_axes(table, axes) for table in both)
        return _compose(library, cos, sin, old_cos, -old_sin)
    if source.whole is None:  # all components are alike
        return _one_component(library, source, library.arange(source.tokens, source.device), None)
    if not source.components:
        return _one_component(library, source, source.whole, source.part)
    by_component = [
        _one_component(
            library,
            source,
            source.whole[c, ...],
            None if source.part is None else source.part[c, ...],
        )
        for c in range(source.components)
    ]
    cos, sin = by_component[0]
    for c, own in enumerate(by_component[1:], 1):
        mine = with_axes(source.tables.component == c, len(cos.shape))
        cos, sin = library.xp.where(mine, own[0], cos), library.xp.where(mine, own[1], sin)
    return cos, sin


def _one_component(
    library: ArrayLibrary, lookup: TableLookup, whole: Array, part: Array | None
) -> tuple[Array, Array]:
    xp, position_range = library.xp, lookup.position_range
    low, middle, high, frequencies, _ = lookup.tables
    double = library.dtype_name(low) == "float64"
    turn_on = _turn_little if double else _compose
    series = fractions.WIDE if double else fractions.NARROW
    count = whole
    outside = None
    if not position_range.checked:
        # Before abs, which C does not define for the most negative integer: a compiler that knows
        # would drop any later test for a negative number, and read beside the table.
        outside = (count <= -LIMIT) | (count > LIMIT - 1)
        count = xp.where(outside, xp.zeros_like(count), count)
    size = xp.abs(count) if position_range.signed else count
    cos, sin = _row(library, low, size & (DIGIT - 1) if position_range.digits > 1 else size)
    if position_range.digits > 1:
        digit = size >> DIGIT_BITS
        digit = digit & (DIGIT - 1) if position_range.digits > 2 else digit
        cos, sin = turn_on(library, cos, sin, *_row(library, middle, digit))
    if position_range.digits > 2:
        digit = size >> (2 * DIGIT_BITS)
        if outside is not None:
            digit = xp.where(outside, xp.full_like(digit, TOP_DIGIT), digit)
        cos, sin = turn_on(library, cos, sin, *_row(library, high, digit))
    if position_range.signed:
        sin = xp.where((count < 0)[..., None], -sin, sin)
    if part is not None:
        angle = _products(xp.astype(part, low.dtype, copy=False), frequencies)
        cos, sin = _turn_little(library, cos, sin, *fractions.cosm1_sin(xp, angle, series))
    return cos, sin


def _products(positions: Array, frequencies: Array) -> Array:
    """Return the angles (..., r/2) of positions (...)."""
    return positions[..., None] * with_axes(frequencies, len(positions.shape) + 1)


def with_axes(x: Array, axes: int) -> Array:
    """Return x with as many axes, the new ones in front and of length 1.

    What has fewer axes is broadcast like this, unless jax is told to refuse it.
    """
    missing = axes - len(x.shape)
    return x[(*(None,) * missing, ...)] if missing else x


def _row(library: ArrayLibrary, table: Array, digits: Array) -> tuple[Array, Array]:
    rows = library.take_rows(table, digits)
    half = table.shape[1] // 2
    return rows[..., :half], rows[..., half:]


def _compose(
    library: ArrayLibrary, cos_a: Array, sin_a: Array, cos_b: Array, sin_b: Array
) -> tuple[Array, Array]:
    mul = library.product
    return mul(cos_a, cos_b) - mul(sin_a, sin_b), mul(sin_a, cos_b) + mul(cos_a, sin_b)


def _turn_little(
    library: ArrayLibrary, cos: Array, sin: Array, versed: Array, sin_b: Array
) -> tuple[Array, Array]:
    """Compose, given cos b - 1: products with a small angle round little, and their sum once."""
    mul = library.product
    return (
        cos + (mul(cos, versed) - mul(sin, sin_b)),
        sin + (mul(sin, versed) + mul(cos, sin_b)),
    )
