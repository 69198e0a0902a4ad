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

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_xp import _fields
from rope_xp._frequencies import remainders
from rope_xp._typing import Array

if TYPE_CHECKING:
    from rope_xp._contract import Backend, Lookup
    from rope_xp.rope import RoPE

DIGIT_BITS = 11
DIGIT = 1 << DIGIT_BITS
TOP_DIGIT = 512
LIMIT = TOP_DIGIT * DIGIT * DIGIT
"""Positions have a modulus below this, 2**31."""


class Reach(NamedTuple):
    """What is known of positions before they are looked up."""

    digits: int
    """How many digits they need, 1 to 3."""
    signed: bool
    """Whether some may be negative."""
    checked: bool
    """Whether all are known to lie within the limit."""


UNKNOWN = Reach(digits=3, signed=True, checked=False)
COUNTED = Reach(digits=3, signed=False, checked=True)
"""Of 0, 1, ... to a number that only a compiler's symbol stands for."""


_POSITIVE = tuple(Reach(digits, signed=False, checked=True) for digits in (1, 2, 3))
_SIGNED = tuple(Reach(digits, signed=True, checked=True) for digits in (1, 2, 3))


def reach_of(lowest: int, highest: int) -> Reach:
    """Return the reach of positions between lowest and highest, both within the limit."""
    if lowest < 0:
        bound = max(-lowest, highest)
        return _SIGNED[(bound >= DIGIT) + (bound >= DIGIT * DIGIT)]
    return _POSITIVE[(highest >= DIGIT) + (highest >= DIGIT * DIGIT)]


@lru_cache(maxsize=64)
def host_tables(
    rope: RoPE, head_dim: int, inverse: bool, wide: bool
) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return what cos_sin looks angles up in, for each position component a tuple of arrays.

    For float32: (low, middle, high, frequencies). Each table is (digits, r) float32, the cosines
    in the first r/2 columns and the sines in the others. For float64 (``wide``): (frequencies,)
    alone, (r/2,) in radians per token.

    With several position components the angle is a sum over them, in which each frequency counts
    for one component and is zero for the others: cos 1 and sin 0 multiply exactly.
    """
    frequencies = checked_frequencies(rope, head_dim)
    masks = [np.ones(len(frequencies))]
    if rope.position_axes is not None:
        axes = np.asarray(rope.position_axes)
        masks = [(axes == c).astype(np.float64) for c in range(max(rope.position_axes) + 1)]
    if wide:
        return tuple((_read_only(frequencies * mask),) for mask in masks)
    # What a scaling rule returns is exact by definition; the plain formula has digits beyond.
    beyond = 0.0 * frequencies
    if rope.scaling is None:
        beyond = remainders(rope.base, 2 * len(frequencies))
    # The factor goes into one table of one component, before rounding: it costs no accuracy.
    scales = [rope_scale(rope, inverse)] + [1.0] * (len(masks) - 1)
    return tuple(
        _digit_tables(frequencies * mask, beyond * mask, scale)
        for mask, scale in zip(masks, scales, strict=True)
    )


def checked_frequencies(rope: RoPE, head_dim: int) -> NDArray[np.float64]:
    """Return the frequencies of a rope, all of whose numbers are found to be good for tables."""
    frequencies = rope.frequencies(head_dim)
    _fields.check_positive("attention_factor", float(rope.attention_factor))
    return frequencies


def table_sizes(pairs: int, wide: bool) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arrays of one component in host_tables."""
    if wide:
        return ((pairs,),)
    return (DIGIT, 2 * pairs), (DIGIT, 2 * pairs), (TOP_DIGIT + 1, 2 * pairs), (pairs,)


def rope_scale(rope: RoPE, inverse: bool) -> float:
    """Return the factor on cos and sin."""
    return 1.0 / rope.attention_factor if inverse else rope.attention_factor


def _digit_tables(
    frequencies: NDArray[np.float64], beyond: NDArray[np.float64], scale: float
) -> tuple[np.ndarray, ...]:
    # Near 2**31 the rounding of digit * frequency alone would cost 1.2e-7. Half of a frequency's
    # bits (Veltkamp's splitting, Dekker 1971, doi 10.1007/BF01397083) times a digit is exact; what
    # is left is small enough to be rounded.
    shifted = frequencies * 134217729.0
    coarse = shifted - (shifted - frequencies)
    fine = (frequencies - coarse) + beyond
    low = _table(coarse, fine, DIGIT, 1) * scale
    middle = _table(coarse, fine, DIGIT, DIGIT)
    high = _table(coarse, fine, TOP_DIGIT, DIGIT * DIGIT)
    # One row more, read by every position out of range: better loud than plausible.
    high = np.concatenate([high, np.full_like(high[:1], np.nan)])
    return tuple(_read_only(t.astype(np.float32)) for t in (low, middle, high, frequencies))


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


def cos_sin(backend: Backend, lookup: Lookup) -> tuple[Array, Array]:
    """Return cos and sin, each (batch..., tokens, r/2), float64 if ``lookup.wide`` else float32."""
    whole, part = lookup.whole, lookup.part
    if whole is None:
        whole = backend.arange(lookup.tokens, lookup.device)
        components = [(whole, None)] * len(lookup.tables)
    elif lookup.components:
        components = [
            (whole[c, ...], None if part is None else part[c, ...])
            for c in range(lookup.components)
        ]
    else:
        components = [(whole, part)]
    if lookup.wide:
        return _cos_sin_wide(backend, lookup, components)
    cos, sin = _cos_sin_digits(backend, lookup.tables[0], *components[0], lookup.reach)
    for tables, (w, f) in zip(lookup.tables[1:], components[1:], strict=True):
        cos, sin = _compose(
            backend, cos, sin, *_cos_sin_digits(backend, tables, w, f, lookup.reach)
        )
    return cos, sin


def _cos_sin_digits(
    backend: Backend, tables: tuple[Array, ...], whole: Array, part: Array | None, reach: Reach
) -> tuple[Array, Array]:
    xp = backend.xp
    low, middle, high, frequencies = tables
    count = whole
    outside = None
    if not reach.checked:
        # Before abs, which C does not define for the most negative integer: a compiler that knows
        # would drop any later test for a negative number, and read beside the table.
        outside = (count <= -LIMIT) | (count > LIMIT - 1)
        count = xp.where(outside, xp.zeros_like(count), count)
    size = xp.abs(count) if reach.signed else count
    cos, sin = _row(backend, low, size & (DIGIT - 1) if reach.digits > 1 else size)
    if reach.digits > 1:
        digit = size >> DIGIT_BITS
        cos, sin = _compose(
            backend,
            cos,
            sin,
            *_row(backend, middle, digit & (DIGIT - 1) if reach.digits > 2 else digit),
        )
    if reach.digits > 2:
        digit = size >> (2 * DIGIT_BITS)
        if outside is not None:
            digit = xp.where(outside, xp.full_like(digit, TOP_DIGIT), digit)
        cos, sin = _compose(backend, cos, sin, *_row(backend, high, digit))
    if reach.signed:
        sin = xp.where((count < 0)[..., None], -sin, sin)
    if part is not None:
        angle = xp.astype(part, xp.float32, copy=False)[..., None] * frequencies
        cos, sin = _compose(backend, cos, sin, xp.cos(angle), xp.sin(angle))
    return cos, sin


def _row(backend: Backend, table: Array, digits: Array) -> tuple[Array, Array]:
    rows = backend.rows(table, digits)
    half = table.shape[1] // 2
    return rows[..., :half], rows[..., half:]


def _compose(
    backend: Backend, cos_a: Array, sin_a: Array, cos_b: Array, sin_b: Array
) -> tuple[Array, Array]:
    mul = backend.product
    return mul(cos_a, cos_b) - mul(sin_a, sin_b), mul(sin_a, cos_b) + mul(cos_a, sin_b)


def _cos_sin_wide(
    backend: Backend, lookup: Lookup, components: list[tuple[Array, Array | None]]
) -> tuple[Array, Array]:
    xp = backend.xp
    angle = None
    for (frequencies,), (whole, part) in zip(lookup.tables, components, strict=True):
        position = xp.astype(whole, xp.float64)
        if part is not None:
            position = position + xp.astype(part, xp.float64)
        term = position[..., None] * frequencies
        angle = term if angle is None else angle + term
    cos, sin = xp.cos(angle), xp.sin(angle)
    return (cos, sin) if lookup.scale == 1.0 else (cos * lookup.scale, sin * lookup.scale)


def difference(
    backend: Backend, new: tuple[Array, Array], old: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return cos and sin of the new angle less the old one."""
    return _compose(backend, *new, old[0], -old[1])
