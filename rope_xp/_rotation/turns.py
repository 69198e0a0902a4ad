"""Angles as integers that wrap around after a whole turn, 2**64.

Sums of integers do not depend on their order. A number is one word of int64, or two of int32, low
and high, where a library has no float64 to convert from.

A step of x radians is x / (2 pi) turns, and 1 / (2 pi) = HIGH + LOW. The product of a float32 and
HIGH is exact in float64, so its fraction of a turn is too. The products with LOW, and of what a
float64 has beyond float32, are small, and rounded below 2**-64 turns for steps below LARGEST. Each
term is truncated to an integer. All errors of a step are below 2**-61 turns. The digits of
:mod:`rope_xp._rotation.products` have the same bound.
"""

import math
from typing import TypeAlias

from rope_xp._core.protocols import ArrayLibrary
from rope_xp._core.typing import Array, Namespace
from rope_xp._rotation import products

Words: TypeAlias = tuple[Array, ...]
LARGEST = 2.0**16
"""Bound of the modulus of steps, in radians."""
TURN = 2.0**64
_HIGH = round(2**31 / math.tau) * 2.0**-31
_LOW = (products.ONE_RADIAN - (round(2**31 / math.tau) << 161)) / 2**products.ONE_RADIAN_BITS
_COARSE = 1608 * 2.0**-24
"""2 pi / 2**16 in 8 bits, whose products with integers of 16 bits are exact in float32."""
_SIGN = -(1 << 31)


def convert_steps(library: ArrayLibrary, steps: Array, double: bool) -> Words:
    """Return steps in radians as integers, from float64 if the library has it."""
    xp = library.xp
    if double:
        x = xp.astype(steps, xp.float64, copy=False)
        top = x
        if library.dtype_name(steps) == "float64":
            top = xp.astype(xp.astype(x, xp.float32), xp.float64)
        turns = top * _HIGH
        total = xp.astype((turns - xp.round(turns)) * TURN, xp.int64)
        total = total + xp.astype(top * (_LOW * TURN), xp.int64)
        if top is not x:
            total = total + xp.astype((x - top) * ((_HIGH + _LOW) * TURN), xp.int64)
        return (total,)
    steps = xp.astype(steps, xp.float32, copy=False)
    digits = products.convert_to_turns(xp, steps, products.SINGLE)[1:7]
    # Digit n has the weight 2**(64 - 11 n).
    a, b, c, d, e, f = (xp.astype(digit, xp.int32) for digit in digits)
    low = (d << 20) + (e << 9) + (f >> 2)
    return add(xp, (low, low >> 31), (c << 31, (a << 21) + (b << 10) + (c >> 1)))


def convert_to_radians(xp: Namespace, words: Words) -> Array:
    """Return angles from -pi to pi, in float64 from one word and in float32 from two."""
    if len(words) == 1:
        return xp.astype(words[0], xp.float64) * (math.tau / TURN)
    high = words[1]
    top, rest = xp.astype(high >> 16, xp.float32), xp.astype(high & 0xFFFF, xp.float32)
    return top * _COARSE + (top * (math.tau / 2**16 - _COARSE) + rest * (math.tau / 2**32))


def add(xp: Namespace, a: Words, b: Words) -> Words:
    """Return a + b. One word may also be a float."""
    low = a[0] + b[0]
    if len(a) == 1:
        return (low,)
    return low, a[1] + b[1] + _has_carry(xp, low, b[0])


def negate(xp: Namespace, a: Words) -> Words:
    if len(a) == 1:
        return (-a[0],)
    return -a[0], ~a[1] + xp.astype(a[0] == 0, xp.int32)


def accumulate(library: ArrayLibrary, a: Words, axis: int) -> Words:
    """Return cumulative sums. One word may also be a float."""
    low = library.cumulative_sum(a[0], axis)
    if len(a) == 1:
        return (low,)
    return low, library.cumulative_sum(a[1] + _has_carry(library.xp, low, a[0]), axis)


def _has_carry(xp: Namespace, total: Array, addend: Array) -> Array:
    """Return 1 where an unsigned sum of low words went beyond 32 bits."""
    return xp.astype((total ^ _SIGN) < (addend ^ _SIGN), xp.int32)
