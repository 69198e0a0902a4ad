r"""Positions to cos and sin, accurate at any position, in the plain array API.

A float32 product ``position * frequency`` has lost all its fractional turns by position 10**7. Here
the position is never multiplied. Its whole part is written in base 2048,

    p = p2 * 2048**2 + p1 * 2048 + p0,

and the angle of each digit is looked up in a table that was computed on the host in float64 and
rounded once to float32. The three rotations are then composed by the angle-addition identity,

    cos(a + b) = cos a cos b - sin a sin b,    sin(a + b) = sin a cos b + cos a sin b.

This needs ``take``, ``*`` and ``+`` of float32 alone, so it runs on every library, on devices
without float64, under every compiler, and gives the same bits on all of them. A fractional part is
one more rotation, by an angle small enough for float32.

Error, for tables of modulus 1, in units of u = 2**-25. A rounded table entry is off by at most u in
either coordinate, by sqrt(2) u as a vector. One composition adds to a coordinate the rounding of
two products whose moduli sum to at most 1, and of their sum: 3 u, or 3 sqrt(2) u as a vector. So
two digits, all positions below 2**22, are off by at most (2 sqrt(2) + 3) u = 1.74e-7; three, below
2**31, by (3 sqrt(2) + 3 sqrt(2) + 3) u = 3.43e-7. The largest errors that were measured are 1.3e-7
and 2.2e-7.
"""

from rope_xp._contract.call import DIGIT, DIGIT_BITS, LIMIT, Difference, Given, Lookup, Source
from rope_xp._contract.library import ArrayLibrary, Digits, Wide
from rope_xp._contract.typing import Array
from rope_xp._rotation.tables import TOP_DIGIT


def cos_sin(library: ArrayLibrary, source: Source) -> tuple[Array, Array]:
    """Return cos and sin, each (batch..., tokens, r/2), float64 if the lookup is wide else float32.

    With several position components each frequency has those of the component that it reads.
    """
    if isinstance(source, Given):
        return source.cos, source.sin
    if isinstance(source, Difference):
        (cos, sin), old = cos_sin(library, source.new), cos_sin(library, source.old)
        return _compose(library, cos, sin, old[0], -old[1])
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
        mine = source.tables.component == c
        cos, sin = library.xp.where(mine, own[0], cos), library.xp.where(mine, own[1], sin)
    return cos, sin


def _one_component(
    library: ArrayLibrary, lookup: Lookup, whole: Array, part: Array | None
) -> tuple[Array, Array]:
    if isinstance(lookup.tables, Wide):
        return _cos_sin_wide(library, lookup.tables, whole, part)
    return _cos_sin_digits(library, lookup, lookup.tables, whole, part)


def _cos_sin_digits(
    library: ArrayLibrary, lookup: Lookup, tables: Digits, whole: Array, part: Array | None
) -> tuple[Array, Array]:
    xp, reach = library.xp, lookup.reach
    low, middle, high, frequencies, _ = tables
    count = whole
    outside = None
    if not reach.checked:
        # Before abs, which C does not define for the most negative integer: a compiler that knows
        # would drop any later test for a negative number, and read beside the table.
        outside = (count <= -LIMIT) | (count > LIMIT - 1)
        count = xp.where(outside, xp.zeros_like(count), count)
    size = xp.abs(count) if reach.signed else count
    cos, sin = _row(library, low, size & (DIGIT - 1) if reach.digits > 1 else size)
    if reach.digits > 1:
        digit = size >> DIGIT_BITS
        cos, sin = _compose(
            library,
            cos,
            sin,
            *_row(library, middle, digit & (DIGIT - 1) if reach.digits > 2 else digit),
        )
    if reach.digits > 2:
        digit = size >> (2 * DIGIT_BITS)
        if outside is not None:
            digit = xp.where(outside, xp.full_like(digit, TOP_DIGIT), digit)
        cos, sin = _compose(library, cos, sin, *_row(library, high, digit))
    if reach.signed:
        sin = xp.where((count < 0)[..., None], -sin, sin)
    if part is not None:
        angle = xp.astype(part, xp.float32, copy=False)[..., None] * frequencies
        cos, sin = _compose(library, cos, sin, xp.cos(angle), xp.sin(angle))
    return cos, sin


def _row(library: ArrayLibrary, table: Array, digits: Array) -> tuple[Array, Array]:
    rows = library.rows(table, digits)
    half = table.shape[1] // 2
    return rows[..., :half], rows[..., half:]


def _compose(
    library: ArrayLibrary, cos_a: Array, sin_a: Array, cos_b: Array, sin_b: Array
) -> tuple[Array, Array]:
    mul = library.product
    return mul(cos_a, cos_b) - mul(sin_a, sin_b), mul(sin_a, cos_b) + mul(cos_a, sin_b)


def _cos_sin_wide(
    library: ArrayLibrary, tables: Wide, whole: Array, part: Array | None
) -> tuple[Array, Array]:
    xp = library.xp
    position = xp.astype(whole, xp.float64)
    if part is not None:
        position = position + xp.astype(part, xp.float64)
    angle = position[..., None] * tables.frequencies
    return xp.cos(angle) * tables.factor, xp.sin(angle) * tables.factor
