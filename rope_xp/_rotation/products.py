r"""cos and sin of position times frequency, for frequencies that are arrays and have no tables.

A float32 product of a position near 10**6 and a frequency near 1 is off by 3e-2, half of its last
bit. But cos and sin need its fraction of a turn alone, which products of integers give exactly:

- The frequency in turns, f / (2 pi), is written in balanced digits of base 2**11, by multiplying
  the digits of f with those of 1 / (2 pi). A product of two digits is an integer of at most 2**20,
  and a sum of eight of them of 2**23: all exact in float32.
- So is the position, in three digits before the point and, for floats, two beyond.
- A digit of weight 2**(11 j) rotates by ``digit * 2**(11 j) * f / (2 pi)``. Its multiplier without
  whole turns is a + b, a on a grid of 2**-13 turns and b within 2**-14. digit * a is exact, and so
  are its fraction of a turn and the sum of those. Only digit * b is rounded.

Whole quarter turns are taken off the exact sum before the rounded one is added: Cody and Waite's
reduction, in turns. No rounded product is subtracted from, so a compiler that fuses multiply-add
changes last bits alone. Payne and Hanek reduce so too (SIGNUM Newsletter 18, 1983, doi
10.1145/1057600.1057602).

Errors of float32, in turns: digit * b and b, 2**-28 together for each of up to five digits; their
sum, and the sum of both parts, 2**-28 each. As an angle that is below 1.7e-7 for one component. The
angle, the series and the cosine are rounded too, 5e-8 at most each: 3.2e-7 in all.
float64 has base 2**22, and half a bit more than its own rounding.

Derivatives do not go through digits. The result is rotated by an angle e that is zero,

    e = (p - [p]) f + [p] (f - [f]),

where [x] is x as a constant: all derivatives of e are those of p f.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rope_xp._core.call import LIMIT
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.protocols import ArrayLibrary
from rope_xp._core.typing import Array, Namespace
from rope_xp._rotation import fractions

ONE_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410
"""round(2**192 / (2 pi)): in turns."""
ONE_RADIAN_BITS = 192


class DigitBase(NamedTuple):
    """How a dtype writes numbers in digits."""

    bits: int
    """Bits of a digit."""
    grid: int
    """The multiplier a is a multiple of 2**-grid: a float has bits + grid bits."""
    digits: int
    """Digits of a frequency, from that of weight 2**bits down."""
    before: int
    """Digits of an integer position."""


SINGLE = DigitBase(bits=11, grid=13, digits=8, before=3)
DOUBLE = DigitBase(bits=22, grid=30, digits=6, before=2)
LARGEST = 2.0**20
"""Bound of the modulus of frequencies."""
_BEYOND = 2
"""Digits of a position after the point."""


class PositionDigits(NamedTuple):
    """A position: sum of ``digits[i] * 2**(bits * weights[i])``, and a rest below them."""

    digits: list[Array]
    weights: range
    rest: Array | None


class Multiplier(NamedTuple):
    """The rotation by a digit of 1, a + b, in turns less whole ones."""

    a: Array
    b: Array


def split_positions(library: ArrayLibrary, positions: Array, base: DigitBase) -> PositionDigits:
    """Return the digits of positions in a dtype that holds them, NaN for those out of range."""
    xp, dtype, last = library.xp, library.dtype_name(positions), base.before - 1
    if dtype in INTEGERS:
        positions = library.integers(positions)
        outside = (positions <= -LIMIT) | (positions > LIMIT - 1)
        digits, top = _split_integer(positions, base.bits, last)
        top = xp.astype(top, xp.float32)
        digits.append(xp.where(outside, xp.full_like(top, math.nan), top))
        return PositionDigits(digits[::-1], range(last, -1, -1), None)
    if dtype in ("float16", "bfloat16"):
        positions = xp.astype(positions, xp.float32)
    inside = xp.abs(positions) < float(LIMIT)
    positions = xp.where(inside, positions, xp.full_like(positions, math.nan))
    weights = range(last, -1 - _BEYOND, -1)
    digits, rest = _split_float(xp, positions, base.bits, weights)
    return PositionDigits(digits, weights, rest)


def build_multipliers(
    library: ArrayLibrary, frequencies: Array, weights: Sequence[int], base: DigitBase
) -> list[Multiplier]:
    """Return the multiplier of a digit of each weight."""
    xp = library.xp
    single = base is SINGLE and library.dtype_name(frequencies) != "float64"
    frequencies = xp.astype(frequencies, xp.float32 if single else xp.float64, copy=False)
    turns = convert_to_turns(xp, frequencies, base)
    zero = xp.zeros_like(turns[0])
    multipliers = []
    for weight in weights:
        # Digits before these are whole turns.
        first, second, third, fourth = (
            (turns[weight + n] if weight + n >= 0 else zero) * 2.0 ** (-base.bits * n)
            for n in (1, 2, 3, 4)
        )
        fraction = _take_fraction(xp, _take_fraction(xp, first) + second)
        a = xp.round(fraction * 2.0**base.grid) * 2.0**-base.grid
        multipliers.append(Multiplier(a, (fraction - a) + (third + fourth)))
    return multipliers


def convert_to_turns(xp: Namespace, frequencies: Array, base: DigitBase) -> list[Array]:
    """Return the digits n of f / (2 pi), of weight 2**(-bits n)."""
    inside = xp.abs(frequencies) < LARGEST
    frequencies = xp.where(inside, frequencies, xp.full_like(frequencies, math.nan))
    digits, _ = _split_float(xp, frequencies, base.bits, range(1, 1 - base.digits, -1))
    last = base.before + 4
    radian = _get_radian_digits(base.bits, last + 1)
    # Digit n: products of digits m of f and l of 1 / (2 pi) with m + l = n.
    sums = []
    for n in range(last + 1):
        terms = [digits[m + 1] * radian[n - m] for m in range(-1, min(n, base.digits - 1))]
        sums.append(sum(terms[1:], terms[0]))
    for n in range(last, 0, -1):
        carry = xp.round(sums[n] * 2.0**-base.bits)
        sums[n] = sums[n] - carry * 2.0**base.bits
        sums[n - 1] = sums[n - 1] + carry
    return sums


def _get_radian_digits(bits: int, last: int) -> list[float]:
    """Return balanced digits n of 1 / (2 pi), of weight 2**(-bits n); the first is 0."""
    radian = ONE_RADIAN >> (ONE_RADIAN_BITS - bits * (last + 1))
    digits, top = _split_integer(radian, bits, last + 1)
    return [float(n) for n in (top, *digits[:0:-1])]


def _split_float(xp: Namespace, x: Array, bits: int, weights: range) -> tuple[list[Array], Array]:
    """Return the digits of floats, the largest first, and the rest."""
    digits = []
    for weight in weights:
        unit = 2.0 ** (bits * weight)
        digits.append(xp.round(x * (1 / unit)))
        x = x - digits[-1] * unit
    return digits, x


def _split_integer(x: Any, bits: int, count: int) -> tuple[list[Any], Any]:
    """Return the lowest balanced digits of an integer or of integers, and the number above."""
    digits = []
    for _ in range(count):
        digit = x & ((1 << bits) - 1)
        carry = digit >> (bits - 1)  # 1 from half of the base on
        digits.append(digit - (carry << bits))
        x = (x >> bits) + carry
    return digits, x


class Term(NamedTuple):
    """The product of one component of positions and its frequencies; all arrays broadcast."""

    position: PositionDigits
    multipliers: list[Multiplier]
    frequencies: Array


def cos_sin(library: ArrayLibrary, terms: Sequence[Term], double: bool) -> tuple[Array, Array]:
    """Return cos and sin of a sum of products, in float64 if ``double``, else in float32."""
    xp = library.xp
    exact: Array = 0.0
    rounded: Array = 0.0
    for position, multipliers, frequencies in terms:
        for digit, (a, b) in zip(position.digits, multipliers, strict=True):
            exact = exact + _take_fraction(xp, digit * a)
            rounded = rounded + digit * b
        if position.rest is not None:
            rounded = rounded + position.rest * (frequencies * (1 / math.tau))
    quarters = xp.round((exact + rounded) * 4.0)
    fraction = (exact - quarters * 0.25) + rounded
    quarters = quarters - 4.0 * xp.floor(quarters * 0.25)  # fit int32
    series = fractions.DOUBLE if double else fractions.SINGLE
    cosm1, sin = fractions.small_cosm1_sin(fraction * math.tau, series)
    cos, sin, _ = fractions.add_quarters(xp, 1.0 + cosm1, sin, quarters)
    return cos, sin


class Factors(NamedTuple):
    """A component of positions and its frequencies, and both as constants to derivatives."""

    p: Array
    constant_p: Array
    f: Array
    constant_f: Array


def follow(
    xp: Namespace, cos: Array, sin: Array, products: Sequence[Factors]
) -> tuple[Array, Array]:
    """Return cos and sin with the derivatives of a sum of products."""
    zero: Array = 0.0
    for p, constant_p, f, constant_f in products:
        zero = zero + ((p - constant_p) * f + constant_p * (f - constant_f))
    cos_e, sin_e = xp.cos(zero), xp.sin(zero)
    return cos * cos_e - sin * sin_e, sin * cos_e + cos * sin_e


def _take_fraction(xp: Namespace, turns: Array) -> Array:
    return turns - xp.round(turns)
