"""Cosines and sines of a few pairs, in vectors: as :mod:`rope_xp._rotation.angles`."""

from math import pi
from typing import Any

from llvmlite import ir

from rope_xp._rotation import fractions

from .language import DOUBLE, FLOAT, I32, Condition, Int


class _Vectors:
    """Vectors of one width: at an address, of constants, and arithmetic on them."""

    def __init__(self, builder: Any, wide: bool, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.element, self.size = (DOUBLE, 8) if wide else (FLOAT, 4)
        self.kind = ir.VectorType(self.element, lanes)

    def load(self, row: Int, index: Int | int = 0) -> Any:
        loaded = self.builder.load((row + row.like(index) * self.size).pointer(self.kind))
        loaded.align = self.size
        return loaded

    def store(self, vector: Any, row: Int, index: Int | int = 0) -> None:
        at = (row + row.like(index) * self.size).pointer(self.kind)
        self.builder.store(vector, at).align = self.size

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * self.lanes)

    def integer(self, value: int) -> Any:
        return ir.Constant(ir.VectorType(I32, self.lanes), [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        b, first = self.builder, ir.Constant(I32, 0)
        one = b.insert_element(ir.Constant(self.kind, ir.Undefined), scalar, first)
        return b.shuffle_vector(one, one, self.integer(0))

    def compose(self, a: Any, turned: Any, *, less_1: bool) -> tuple[Any, Any]:
        """Return cosine and sine of a sum; ``less_1`` says that the second's cosine lacks 1."""
        b, (cos, sin), (cos_b, sin_b) = self.builder, a, turned
        c = b.fsub(b.fmul(cos, cos_b), b.fmul(sin, sin_b))
        s = b.fadd(b.fmul(sin, cos_b), b.fmul(cos, sin_b))
        return (b.fadd(cos, c), b.fadd(sin, s)) if less_1 else (c, s)

    def versed_sin(self, angle: Any, series: fractions.Series) -> tuple[Any, Any]:
        """Return cosine less 1 and sine, as :func:`rope_xp._rotation.fractions.versed_sin`."""
        b = self.builder
        quarters = b.fadd(b.fmul(angle, self.constant(2 / pi)), self.constant(0.5))
        turn = b.fptosi(quarters, ir.VectorType(I32, self.lanes))  # rounds down what is positive
        quarters = b.sitofp(turn, self.kind)
        x = b.fsub(angle, b.fmul(quarters, self.constant(series.coarse)))
        x = b.fsub(x, b.fmul(quarters, self.constant(series.fine)))
        square = b.fmul(x, x)
        odd, even = (self._horner(square, c) for c in (series.sine, series.cosine))
        sin, versed = b.fadd(x, b.fmul(b.fmul(x, square), odd)), b.fmul(square, even)
        one, zero = self.constant(1.0), self.integer(0)
        cos = b.fadd(one, versed)

        def bit(of: Any, mask: int) -> Any:
            return b.icmp_signed("!=", b.and_(of, self.integer(mask)), zero)

        swapped, negative = bit(turn, 1), bit(b.add(turn, self.integer(1)), 2)
        cos, sin = b.select(swapped, sin, cos), b.select(swapped, cos, sin)
        cos = b.select(negative, b.fneg(cos), cos)
        versed = b.select(b.icmp_signed("==", turn, zero), versed, b.fsub(cos, one))
        return versed, b.select(bit(turn, 2), b.fneg(sin), sin)

    def _horner(self, square: Any, coefficients: tuple[float, ...]) -> Any:
        made = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            made = self.builder.fadd(self.builder.fmul(made, square), self.constant(coefficient))
        return made

    def negated_if(self, negative: Condition, vector: Any) -> Any:
        return self.builder.select(negative, self.builder.fneg(vector), vector)


def look_up(
    rows: tuple[Int, Int],
    tables: tuple[Int, Int, Int],
    pairs: Int,
    first: Int,
    negative: Condition,
    wide: bool,
    lanes: int,
) -> None:
    """Write cos and sin of pairs ``first`` to ``first + lanes`` from a row of each table."""
    v = _Vectors(pairs.builder, wide, lanes)
    low, *others = ((v.load(row, first), v.load(row, pairs + first)) for row in tables)
    made = low
    for turned in others:
        made = v.compose(made, turned, less_1=wide)
    v.store(made[0], rows[0], first)
    v.store(v.negated_if(negative, made[1]), rows[1], first)


def turn_on(
    rows: tuple[Int, Int],
    frequencies: Int,
    fraction: Int,
    first: Int,
    negative: Condition,
    wide: bool,
    lanes: int,
) -> None:
    """Turn cos and sin of some pairs on by the fraction of a token at an address.

    Then negate the sine or not.
    """
    v = _Vectors(first.builder, wide, lanes)
    part = v.splat(v.builder.load(fraction.pointer(v.element)))
    angle = v.builder.fmul(part, v.load(frequencies, first))
    turned = v.versed_sin(angle, fractions.WIDE if wide else fractions.NARROW)
    made = v.compose((v.load(rows[0], first), v.load(rows[1], first)), turned, less_1=True)
    v.store(made[0], rows[0], first)
    v.store(v.negated_if(negative, made[1]), rows[1], first)


def take(target: Int, source: Int, negative: Condition | None, wide: bool) -> None:
    """Write the number at one address to another, or its negative."""
    v = _Vectors(target.builder, wide, 1)
    number = v.load(source)
    v.store(number if negative is None else v.negated_if(negative, number), target)


def pick(
    rows: tuple[Int, Int],
    own: tuple[Int, Int],
    component: Int,
    which: Int,
    first: Int,
    wide: bool,
    lanes: int,
) -> None:
    """Write ``own`` cos and sin over those of rows where the table ``component`` is ``which``."""
    v = _Vectors(first.builder, wide, lanes)
    b, names = v.builder, ir.VectorType(I32, lanes)
    name = b.load((component + first * 4).pointer(names))
    name.align = 4
    wanted = b.insert_element(
        ir.Constant(names, ir.Undefined), b.trunc(which.value, I32), ir.Constant(I32, 0)
    )
    mine = b.icmp_signed("==", name, b.shuffle_vector(wanted, wanted, v.integer(0)))
    for table, other in zip(rows, own, strict=True):
        v.store(b.select(mine, v.load(other, first), v.load(table, first)), table, first)
