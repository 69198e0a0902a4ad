r"""Position times frequency, exact to the last turn, where frequencies are arrays and not numbers.

Learned frequencies have no tables. A float32 product of a position near 10**6 and a frequency near
1 is off by 3e-2, half of what its last bit is worth. What counts of it is the part of a turn alone,
and that can be had from products that are exact:

- The frequency in turns, f / (2 pi), is written in balanced digits of base 2**11, by multiplying
  the digits of f with those of 1 / (2 pi). A product of two digits is an integer of at most 2**20,
  and a sum of eight of them of 2**23, so all of it is exact in float32.
- So is the position, which has three digits before the point and, if it is a float, two beyond.
- A digit of weight 2**(11 j) turns by ``digit * 2**(11 j) * f / (2 pi)``, of which whole turns are
  left away before the product is taken: the multiplier is a, on a grid of 2**-13 turns, and b
  within 2**-14. digit * a is exact, and so are its part of a turn and the sum of all those. Only
  digit * b is rounded.

Whole quarters are taken off that sum, exactly, before what was rounded is added: Cody and Waite's
reduction, in turns. No product that is rounded is subtracted from, so that a compiler which fuses
multiply-add changes last bits alone. Payne and Hanek reduce so too (SIGNUM Newsletter 18, 1983, doi
10.1145/1057600.1057602).

Errors of float32, in turns: digit * b and b, 2**-28 together for each of up to five digits; their
sum, and that with what is left of a quarter, 2**-28 each. As an angle that is below 1.7e-7, for one
component. The angle, the series and the cosine are rounded too, 5e-8 at most each: 3.2e-7 in all.
1.1e-7 is the most that was measured. float64 has base 2**22, and half a bit more than its own.

Derivatives do not go through digits. What is returned is turned on by an angle e that is zero,

    e = (p - [p]) f + [p] (f - [f]),

where [x] is x as a constant: all derivatives of it are those of p f.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rope_xp._core.call import LIMIT
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.library import ArrayLibrary
from rope_xp._core.typing import Array
from rope_xp._rotation import fractions

# round(2**192 / (2 pi))
_TURN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410
_TURN_BITS = 192


class Base(NamedTuple):
    """What numbers a width of arithmetic writes in digits."""

    bits: int
    """Of a digit."""
    grid: int
    """The multiplier a is a multiple of 2**-grid: bits and grid are those of a float together."""
    digits: int
    """Of a frequency, from that of weight 2**bits down."""
    before: int
    """Digits of a whole position."""


NARROW = Base(bits=11, grid=13, digits=8, before=3)
WIDE = Base(bits=22, grid=30, digits=6, before=2)
"""Of float32 and of float64."""
LARGEST = 2.0**20
"""Frequencies have a modulus below this."""
_BEYOND = 2
"""Digits of a position after the point."""


class PositionDigits(NamedTuple):
    """A position: sum of ``digits[i] * 2**(bits * weights[i])``, and what is left of it."""

    digits: list[Array]
    weights: range
    rest: Array | None


class Multiplier(NamedTuple):
    """Turns of a digit of 1, less whole ones."""

    a: Array
    b: Array


# --- positions -----------------------------------------------------------------------------------


def digits(library: ArrayLibrary, positions: Array, base: Base) -> PositionDigits:
    """Return the digits of positions in a dtype that holds them, NaN for those out of range."""
    xp, dtype = library.xp, library.dtype_name(positions)
    if dtype in INTEGERS:
        return _of_integers(library, library.integers(positions), base)
    if dtype in ("float16", "bfloat16"):
        positions = xp.astype(positions, xp.float32)
    left = xp.where(xp.abs(positions) < float(LIMIT), positions, xp.full_like(positions, math.nan))
    weights = range(base.before - 1, -1 - _BEYOND, -1)
    found = []
    for weight in weights:
        unit = 2.0 ** (base.bits * weight)
        digit = xp.round(left * (1 / unit))
        left = left - digit * unit
        found.append(digit)
    return PositionDigits(found, weights, left)


def _of_integers(library: ArrayLibrary, left: Array, base: Base) -> PositionDigits:
    xp, last = library.xp, (1 << base.bits) - 1
    outside = (left <= -LIMIT) | (left > LIMIT - 1)
    found = []
    for _ in range(base.before - 1):
        digit = left & last
        carry = digit >> (base.bits - 1)  # 1 from half of the base on, so that digits are balanced
        found.append(digit - (carry << base.bits))
        left = (left >> base.bits) + carry
    top = xp.astype(left, xp.float32)
    found.append(xp.where(outside, xp.full_like(top, math.nan), top))
    return PositionDigits(found[::-1], range(base.before - 1, -1, -1), None)


# --- frequencies ---------------------------------------------------------------------------------


def multipliers(
    library: ArrayLibrary, frequencies: Array, weights: Sequence[int], base: Base
) -> list[Multiplier]:
    """Return what a digit of each weight is multiplied by."""
    xp = library.xp
    narrow = base is NARROW and library.dtype_name(frequencies) != "float64"
    frequencies = xp.astype(frequencies, xp.float32 if narrow else xp.float64, copy=False)
    places = _in_turns(library, frequencies, base)
    found = []
    for weight in weights:
        # Whole turns are those of the digits before these.
        first, second, third, fourth = (
            _digit(library, places, weight + n) * 2.0 ** (-base.bits * n) for n in (1, 2, 3, 4)
        )
        turns = _part(library, _part(library, first) + second)
        a = xp.round(turns * 2.0**base.grid) * 2.0**-base.grid
        b = (turns - a) + (third + fourth)
        found.append(Multiplier(a, b))
    return found


def _digit(library: ArrayLibrary, digits: list[Array], n: int) -> Array:
    return digits[n] if n >= 0 else library.xp.zeros_like(digits[0])


def _in_turns(library: ArrayLibrary, frequencies: Array, base: Base) -> list[Array]:
    """Return digits of f / (2 pi), that of weight 2**(-bits n) at place n."""
    xp, bits = library.xp, base.bits
    inside = xp.abs(frequencies) < LARGEST
    left = xp.where(inside, frequencies, xp.full_like(frequencies, float("nan")))
    own = []
    for m in range(-1, base.digits - 1):
        unit = 2.0 ** (-bits * m)
        digit = xp.round(left * (1 / unit))
        left = left - digit * unit
        own.append(digit)
    most = base.before + 4
    turn = _turn_digits(bits, most + 1)
    # At place n: digits m of f and l of 1 / (2 pi) with m + l = n.
    sums = []
    for n in range(most + 1):
        terms = [own[m + 1] * turn[n - m] for m in range(-1, min(n, base.digits - 1))]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        sums.append(total)
    for n in range(most, 0, -1):
        carry = xp.round(sums[n] * 2.0**-bits)
        sums[n] = sums[n] - carry * 2.0**bits
        sums[n - 1] = sums[n - 1] + carry
    return sums


def _turn_digits(bits: int, most: int) -> list[float]:
    """Return balanced digits of 1 / (2 pi), that of weight 2**(-bits n) at place n; 0 is 0."""
    left = _TURN >> (_TURN_BITS - bits * (most + 1))
    digits = []
    for _ in range(most + 1):
        digit = left & ((1 << bits) - 1)
        carry = digit >> (bits - 1)
        digits.append(float(digit - (carry << bits)))
        left = (left >> bits) + carry
    return [float(left), *digits[:0:-1]]


# --- angles --------------------------------------------------------------------------------------


class Followed(NamedTuple):
    """A number that derivatives follow, and the same as a constant."""

    value: Array
    fixed: Array


class Term(NamedTuple):
    """The product of one component of positions and its frequencies; all arrays broadcast."""

    position: PositionDigits
    by: list[Multiplier]
    p: Followed
    f: Followed


def cos_sin(library: ArrayLibrary, terms: Sequence[Term], double: bool) -> tuple[Array, Array]:
    """Return cos and sin of a sum of products, in float64 where they are wide, else in float32."""
    xp = library.xp
    exact: Array = 0.0
    rounded: Array = 0.0
    for position, by, _, f in terms:
        for digit, (a, b) in zip(position.digits, by, strict=True):
            exact = exact + _part(library, digit * a)
            rounded = rounded + digit * b
        if position.rest is not None:
            rounded = rounded + position.rest * (f.fixed * (1 / math.tau))
    quarters = xp.round((exact + rounded) * 4.0)
    left = (exact - quarters * 0.25) + rounded
    # An integer of 32 bits has room for those that are left of four.
    quarters = quarters - 4.0 * xp.floor(quarters * 0.25)
    series = fractions.WIDE if double else fractions.NARROW
    versed, sin = fractions.small(left * math.tau, series)
    cos, sin, _ = fractions.turned(xp, 1.0 + versed, sin, quarters)
    if all(p.value is p.fixed and f.value is f.fixed for *_, p, f in terms):
        return cos, sin
    zero: Array = 0.0
    for *_, p, f in terms:
        zero = zero + ((p.value - p.fixed) * f.value + p.fixed * (f.value - f.fixed))
    cos_e, sin_e = xp.cos(zero), xp.sin(zero)
    return cos * cos_e - sin * sin_e, sin * cos_e + cos * sin_e


def _part(library: ArrayLibrary, turns: Array) -> Array:
    return turns - library.xp.round(turns)
