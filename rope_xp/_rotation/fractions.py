"""Cosines and sines by sums and products alone, for what positions have after the point.

Those of two libraries differ in last bits, and a kernel's in others. So an angle is brought within
pi/4 of a multiple of pi/2, in two steps as Cody and Waite do (Software Manual for the Elementary
Functions, 1980), of which the first is exact. The Taylor series of what is left is cut off where it
is below a tenth of the last bit.
"""

from math import factorial, pi
from typing import NamedTuple

from rope_xp._core.typing import Array, Namespace


class Series(NamedTuple):
    """What a width of arithmetic needs."""

    coarse: float
    """pi/2 in so few bits that its product with a number of quarter turns is exact."""
    fine: float
    """What pi/2 has beyond that."""
    sine: tuple[float, ...]
    """Coefficients of x**3, x**5, ..., the last first."""
    cosine: tuple[float, ...]
    """Coefficients of x**2, x**4, ..., the last first."""


def _taylor(first: int, last: int) -> tuple[float, ...]:
    return tuple((-1) ** (n // 2) / factorial(n) for n in range(last, first - 1, -2))


NARROW = Series(1.57080078125, -4.454455103380769e-06, _taylor(3, 9), _taylor(2, 10))
WIDE = Series(1.570796325802803, 9.920935796805404e-10, _taylor(3, 17), _taylor(2, 16))
"""Of float32 and of float64."""


def cosm1_sin(xp: Namespace, angle: Array, series: Series) -> tuple[Array, Array]:
    """Return cosine less 1 and sine of angles from 0 to some thousand, in the series' dtype."""
    quarters = xp.floor(angle * (2 / pi) + 0.5)
    x = (angle - quarters * series.coarse) - quarters * series.fine
    versed, sin = small(x, series)
    cos, sin, turn = turned(xp, 1.0 + versed, sin, quarters)
    return xp.where(turn == 0, versed, cos - 1.0), sin


def small(x: Array, series: Series) -> tuple[Array, Array]:
    """Return cosine less 1 and sine of angles within pi/4."""
    square = x * x
    # Taylor's series in Horner's form: the terms that are rounded last are the largest.
    odd, even = series.sine[0], series.cosine[0]
    for coefficient in series.sine[1:]:
        odd = odd * square + coefficient
    for coefficient in series.cosine[1:]:
        even = even * square + coefficient
    return square * even, x + (x * square) * odd


def turned(xp: Namespace, cos: Array, sin: Array, quarters: Array) -> tuple[Array, Array, Array]:
    """Return cosine and sine turned on by whole quarters, and these as integers."""
    turn = xp.astype(quarters, xp.int32)
    swapped = (turn & 1) != 0
    cos, sin = xp.where(swapped, sin, cos), xp.where(swapped, cos, sin)
    cos = xp.where(((turn + 1) & 2) != 0, -cos, cos)
    return cos, xp.where((turn & 2) != 0, -sin, sin), turn
