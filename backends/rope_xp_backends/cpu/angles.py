"""cos and sin in vectors: the steps of :mod:`rope_xp._rotation.angles`."""

from math import pi
from typing import Any, TypeAlias

from llvmlite import ir

from rope_xp._rotation import fractions

from .language import DOUBLE, FLOAT, I32, Condition, Int, broadcast, fill

CosSin: TypeAlias = tuple[Int, Int]
"""Addresses of cos and sin."""


class Vectors:
    """Vectors of one width: loads, stores and arithmetic."""

    def __init__(self, builder: Any, double: bool, lanes: int) -> None:
        self.builder, self.double, self.lanes = builder, double, lanes
        self.element, self.size = (DOUBLE, 8) if double else (FLOAT, 4)
        self.kind = ir.VectorType(self.element, lanes)

    def load(self, row: Int, index: Int | int = 0) -> Any:
        """Load the elements of a row from an index on."""
        return (row + row.like(index) * self.size).load(self.kind, self.size)

    def store(self, vector: Any, row: Int, index: Int | int = 0) -> None:
        """Store them."""
        (row + row.like(index) * self.size).store(vector, self.size)

    def constant(self, value: float) -> Any:
        """Return a vector of one number."""
        return fill(self.element, value, self.lanes)

    # c = cos_a * cos_b - sin_a * sin_b;
    # s = sin_a * cos_b + cos_a * sin_b;
    # return less_1 ? (cos_a + c, sin_a + s) : (c, s);
    def compose(self, a: tuple[Any, Any], b: tuple[Any, Any], *, less_1: bool) -> tuple[Any, Any]:
        """Return cosine and sine of a + b. ``less_1`` says that b has cos - 1 in place of cos."""
        f, (cos_a, sin_a), (cos_b, sin_b) = self.builder, a, b
        c = f.fsub(f.fmul(cos_a, cos_b), f.fmul(sin_a, sin_b))
        s = f.fadd(f.fmul(sin_a, cos_b), f.fmul(cos_a, sin_b))
        return (f.fadd(cos_a, c), f.fadd(sin_a, s)) if less_1 else (c, s)

    # quarters = (int)(angle * (2/pi) + 0.5);
    # x = angle - quarters * coarse - quarters * fine;
    # sin = x + x*x*x * odd(x*x), cosm1 = x*x * even(x*x), cos = 1 + cosm1;
    # if (quarters & 1) swap(cos, sin);
    # if ((quarters + 1) & 2) cos = -cos;
    # if (quarters & 2) sin = -sin;
    # return quarters == 0 ? cosm1 : cos - 1, sin;
    def cosm1_sin(self, angle: Any, series: fractions.Series) -> tuple[Any, Any]:
        """Return cos - 1 and sin of angles from 0, as :mod:`rope_xp._rotation.fractions` does."""
        b = self.builder
        quarters = b.fadd(b.fmul(angle, self.constant(2 / pi)), self.constant(0.5))
        turns = b.fptosi(quarters, ir.VectorType(I32, self.lanes))  # floor, as none is negative
        quarters = b.sitofp(turns, self.kind)
        x = b.fsub(angle, b.fmul(quarters, self.constant(series.coarse)))
        x = b.fsub(x, b.fmul(quarters, self.constant(series.fine)))
        square = b.fmul(x, x)
        odd, even = (self._horner(square, c) for c in (series.sine, series.cosine))
        sin, cosm1 = b.fadd(x, b.fmul(b.fmul(x, square), odd)), b.fmul(square, even)
        zero, one, two = (fill(I32, value, self.lanes) for value in (0, 1, 2))
        cos = b.fadd(self.constant(1.0), cosm1)

        def has(integer: Any, bit: Any) -> Any:
            return b.icmp_signed("!=", b.and_(integer, bit), zero)

        swapped, negative = has(turns, one), has(b.add(turns, one), two)
        cos, sin = b.select(swapped, sin, cos), b.select(swapped, cos, sin)
        cos = self.negate_if(negative, cos)
        cosm1 = b.select(b.icmp_signed("==", turns, zero), cosm1, b.fsub(cos, self.constant(1.0)))
        return cosm1, self.negate_if(has(turns, two), sin)

    def _horner(self, square: Any, coefficients: tuple[float, ...]) -> Any:
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.builder.fadd(self.builder.fmul(value, square), self.constant(coefficient))
        return value

    def negate_if(self, negative: Condition, vector: Any) -> Any:
        """Return a vector or its negative, as a whole or lane by lane."""
        return self.builder.select(negative, self.builder.fneg(vector), vector)


# for (i = first; i < first + lanes; i++) {
#     (c, s) = compose(low[i], middle[i]), (c, s) = compose((c, s), high[i]);
#     cos[i] = c, sin[i] = negative ? -s : s;
# }
def compose_digits(
    v: Vectors, rows: CosSin, tables: tuple[Int, ...], pairs: Int, first: Int, negative: Condition
) -> None:
    """Compose cos and sin of a row of each digit's table, where sines lie behind cosines."""
    angle, *others = ((v.load(row, first), v.load(row, pairs + first)) for row in tables)
    for other in others:
        angle = v.compose(angle, other, less_1=v.double)
    v.store(angle[0], rows[0], first)
    v.store(v.negate_if(negative, angle[1]), rows[1], first)


# for (i = first; i < first + lanes; i++) {
#     (c, s) = compose((cos[i], sin[i]), cosm1_sin(*fraction * frequencies[i]));
#     cos[i] = c, sin[i] = negative ? -s : s;
# }
def add_fraction(
    v: Vectors, rows: CosSin, frequencies: Int, fraction: Int, first: Int, negative: Condition
) -> None:
    """Advance cos and sin by the fractional part of a position, then negate the sine or not."""
    part = broadcast(v.builder, fraction.load(v.element, v.size), v.lanes)
    product = v.builder.fmul(part, v.load(frequencies, first))
    step = v.cosm1_sin(product, fractions.DOUBLE if v.double else fractions.SINGLE)
    angle = v.compose((v.load(rows[0], first), v.load(rows[1], first)), step, less_1=True)
    v.store(angle[0], rows[0], first)
    v.store(v.negate_if(negative, angle[1]), rows[1], first)


# for (i = first; i < first + lanes; i++)
#     if (components[i] == component) cos[i] = new_cos[i], sin[i] = new_sin[i];
def select_component(
    v: Vectors, rows: CosSin, new: CosSin, components: Int, component: Int, first: Int
) -> None:
    """Overwrite cos and sin in ``rows`` by those in ``new`` where pairs read one component."""
    b = v.builder
    read = (components + first * 4).load(ir.VectorType(I32, v.lanes), 4)
    selected = b.icmp_signed("==", read, broadcast(b, b.trunc(component.value, I32), v.lanes))
    for row, new_row in zip(rows, new, strict=True):
        v.store(b.select(selected, v.load(new_row, first), v.load(row, first)), row, first)
