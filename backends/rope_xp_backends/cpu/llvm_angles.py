"""Cosines and sines of a block of pairs in LLVM's own types, as :mod:`rope_xp._rotation.angles`.

Plain loops over rows of tables would become vectors too, but numba counts references to each row,
and LLVM asks of each loop whether arrays overlap: ten times what the arithmetic takes.
"""

from math import pi
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rope_xp._rotation import fractions

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()


class _Vectors:
    """Vectors of one width: at an address, of constants, and arithmetic on them."""

    def __init__(self, builder: Any, wide: bool, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.element, self.size = (_DOUBLE, 8) if wide else (_FLOAT, 4)
        self.kind = ir.VectorType(self.element, lanes)

    def address(self, start: Any, index: Any, size: int, kind: Any) -> Any:
        b = self.builder
        at = b.add(start, b.mul(index, ir.Constant(_I64, size)))
        return b.inttoptr(at, kind.as_pointer())

    def load(self, start: Any, index: Any) -> Any:
        loaded = self.builder.load(self.address(start, index, self.size, self.kind))
        loaded.align = self.size
        return loaded

    def store(self, vector: Any, start: Any, index: Any) -> None:
        at = self.address(start, index, self.size, self.kind)
        self.builder.store(vector, at).align = self.size

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * self.lanes)

    def integer(self, value: int) -> Any:
        return ir.Constant(ir.VectorType(_I32, self.lanes), [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        b, first = self.builder, ir.Constant(_I32, 0)
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
        turn = b.fptosi(quarters, ir.VectorType(_I32, self.lanes))  # rounds down what is positive
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

    def negated_if(self, flag: Any, vector: Any) -> Any:
        b = self.builder
        return b.select(b.icmp_signed("!=", flag, flag.type(0)), b.fneg(vector), vector)


@intrinsic(prefer_literal=True)
def look_up(typing, cos, sin, low, middle, high, pairs, first, negative, wide, lanes):
    """Write cos and sin of pairs ``first`` to ``first + lanes`` from three rows of tables."""
    less_1, n = bool(wide.literal_value), lanes.literal_value

    def codegen(context, builder, signature, args):
        cos, sin, low, middle, high, pairs, first, negative = args[:8]
        v = _Vectors(builder, less_1, n)
        behind = builder.add(pairs, first)
        made = v.load(low, first), v.load(low, behind)
        for row in (middle, high):
            made = v.compose(made, (v.load(row, first), v.load(row, behind)), less_1=less_1)
        v.store(made[0], cos, first)
        v.store(v.negated_if(negative, made[1]), sin, first)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, wide, lanes), codegen


@intrinsic(prefer_literal=True)
def turn_on(typing, cos, sin, frequencies, fraction, first, negative, wide, lanes):
    """Turn cos and sin of some pairs on by the fraction of a token at an address.

    Then negate the sine or not.
    """
    is_wide, n = bool(wide.literal_value), lanes.literal_value

    def codegen(context, builder, signature, args):
        cos, sin, frequencies, fraction, first, negative = args[:6]
        v = _Vectors(builder, is_wide, n)
        kind = v.element.as_pointer()
        angle = builder.fmul(
            v.splat(builder.load(builder.inttoptr(fraction, kind))), v.load(frequencies, first)
        )
        turned = v.versed_sin(angle, fractions.WIDE if is_wide else fractions.NARROW)
        made = v.compose((v.load(cos, first), v.load(sin, first)), turned, less_1=True)
        v.store(made[0], cos, first)
        v.store(v.negated_if(negative, made[1]), sin, first)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, wide, lanes), codegen


@intrinsic(prefer_literal=True)
def take(typing, target, source, negative, wide):
    """Write the number at one address to another, or its negative."""
    is_wide = bool(wide.literal_value)

    def codegen(context, builder, signature, args):
        target, source, negative = args[:3]
        v, zero = _Vectors(builder, is_wide, 1), ir.Constant(_I64, 0)
        v.store(v.negated_if(negative, v.load(source, zero)), target, zero)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, wide), codegen


@intrinsic
def name(typing, component, index):
    """Return which component of positions a frequency reads."""

    def codegen(context, builder, signature, args):
        at = builder.add(args[0], builder.mul(args[1], ir.Constant(_I64, 4)))
        return builder.sext(builder.load(builder.inttoptr(at, _I32.as_pointer())), _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def pick(typing, cos, sin, own_cos, own_sin, component, which, first, wide, lanes):
    """Write own_cos and own_sin over cos and sin where ``component`` is ``which``."""
    is_wide, n = bool(wide.literal_value), lanes.literal_value

    def codegen(context, builder, signature, args):
        cos, sin, own_cos, own_sin, component, which, first = args[:7]
        v = _Vectors(builder, is_wide, n)
        names = ir.VectorType(_I32, n)
        name = builder.load(v.address(component, first, 4, names))
        name.align = 4
        wanted = builder.insert_element(
            ir.Constant(names, ir.Undefined), builder.trunc(which, _I32), ir.Constant(_I32, 0)
        )
        wanted = builder.shuffle_vector(wanted, wanted, v.integer(0))
        mine = builder.icmp_signed("==", name, wanted)
        for table, own in ((cos, own_cos), (sin, own_sin)):
            chosen = builder.select(mine, v.load(own, first), v.load(table, first))
            v.store(chosen, table, first)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7, wide, lanes), codegen
