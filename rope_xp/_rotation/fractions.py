"""cos and sin by sums and products alone, for the fractional part of positions.

Those of two libraries differ in last bits. So an angle is reduced to within pi/4 of a multiple of
pi/2 in two steps, the first of them exact (Cody and Waite, Software Manual for the Elementary
Functions, 1980). Its Taylor series ends where a term is below a tenth of the last bit.
"""

from math import factorial, pi
from typing import NamedTuple

from rope_xp._core.typing import Array, Namespace


class Series(NamedTuple):
    """Constants of a dtype."""

    coarse: float
    """pi/2 in so few bits that multiples of it are exact."""
    fine: float
    """pi/2 - coarse."""
    sine: tuple[float, ...]
    """Coefficients of x**3, x**5, ..., the last first."""
    cosine: tuple[float, ...]
    """Coefficients of x**2, x**4, ..., the last first."""
    largest: float
    """Bound of the modulus of angles, within which ``quarters * coarse`` is exact."""


def _taylor(first: int, last: int) -> tuple[float, ...]:
    return tuple((-1) ** (n // 2) / factorial(n) for n in range(last, first - 1, -2))


SINGLE = Series(1.57080078125, -4.454455103380769e-06, _taylor(3, 9), _taylor(2, 10), 2.0**12)
DOUBLE = Series(1.570796325802803, 9.920935796805404e-10, _taylor(3, 17), _taylor(2, 16), 2.0**26)


def cosm1_sin(xp: Namespace, angle: Array, series: Series) -> tuple[Array, Array]:
    """Return cos - 1 and sin of angles within ``series.largest``, in the series' dtype."""
    quarters = xp.floor(angle * (2 / pi) + 0.5)
    x = (angle - quarters * series.coarse) - quarters * series.fine
    cosm1, sin = small_cosm1_sin(x, series)
    cos, sin, turns = add_quarters(xp, 1.0 + cosm1, sin, quarters)
    return xp.where(turns == 0, cosm1, cos - 1.0), sin


def small_cosm1_sin(x: Array, series: Series) -> tuple[Array, Array]:
    """Return cos - 1 and sin of angles within pi/4."""
    square = x * x
    # Horner's form rounds the largest terms last.
    odd, even = series.sine[0], series.cosine[0]
    for coefficient in series.sine[1:]:
        odd = odd * square + coefficient
    for coefficient in series.cosine[1:]:
        even = even * square + coefficient
    return square * even, x + (x * square) * odd


def add_quarters(
    xp: Namespace, cos: Array, sin: Array, quarters: Array
) -> tuple[Array, Array, Array]:
    """Return cos and sin rotated by quarter turns, and their number as integers."""
    turns = xp.astype(quarters, xp.int32)
    swapped = (turns & 1) != 0
    cos, sin = xp.where(swapped, sin, cos), xp.where(swapped, cos, sin)
    cos = xp.where(((turns + 1) & 2) != 0, -cos, cos)
    return cos, xp.where((turns & 2) != 0, -sin, sin), turns
