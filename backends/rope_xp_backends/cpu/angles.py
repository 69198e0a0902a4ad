"""cos and sin in vectors: the steps of :mod:`rope_xp._rotation.angles`."""

from math import pi
from typing import Any, TypeAlias

from llvmlite import ir

from rope_xp._rotation import fractions

from .language import DOUBLE, FLOAT, I32, Condition, Int, fill

CosSin: TypeAlias = tuple[Int, Int]
"""Addresses of cos and sin."""


class Vectors:
    """Vectors of one width: loads, stores and arithmetic."""

    def __init__(self, builder: Any, double: bool, lanes: int) -> None:
        self.builder, self.double, self.lanes = builder, double, lanes
        self.element, self.size = (DOUBLE, 8) if double else (FLOAT, 4)
        self.kind = ir.VectorType(self.element, lanes)

    def load(self, row: Int, index: Int | int = 0) -> Any:
        return (row + row.like(index) * self.size).load(self.kind, self.size)

    def store(self, vector: Any, row: Int, index: Int | int = 0) -> None:
        (row + row.like(index) * self.size).store(vector, self.size)

    def constant(self, value: float) -> Any:
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

    # turns = (int)floor(angle * (2/pi) + 0.5);
    # x = angle - turns * coarse - turns * fine;
    # sin = x + x*x*x * odd(x*x), cosm1 = x*x * even(x*x), cos = 1 + cosm1;
    # if (turns & 1) swap(cos, sin);
    # if ((turns + 1) & 2) cos = -cos;
    # if (turns & 2) sin = -sin;
    # return turns == 0 ? cosm1 : cos - 1, sin;
    def cosm1_sin(self, angle: Any) -> tuple[Any, Any]:
        """Return cos - 1 and sin of angles, as :mod:`rope_xp._rotation.fractions` does."""
        b, series = self.builder, fractions.DOUBLE if self.double else fractions.SINGLE
        quarters = b.fadd(b.fmul(angle, self.constant(2 / pi)), self.constant(0.5))
        name, kind = f"llvm.floor.v{self.lanes}f{8 * self.size}", [self.kind]
        floor = b.module.declare_intrinsic(name, fnty=ir.FunctionType(self.kind, kind))
        quarters = b.call(floor, [quarters])
        turns = b.fptosi(quarters, ir.VectorType(I32, self.lanes))
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

    def store_angle(
        self, angle: tuple[Any, Any], rows: CosSin, first: Int | int, negative: Condition
    ) -> None:
        """Store cos and sin, or cos and -sin."""
        self.store(angle[0], rows[0], first)
        self.store(self.negate_if(negative, angle[1]), rows[1], first)
