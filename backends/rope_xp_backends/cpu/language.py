"""What kernels are written in: LLVM's integers, conditions and loops, as those of Python.

A function of this folder that is given such integers does not compute, it writes code that will.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

I32, I64 = ir.IntType(32), ir.IntType(64)
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
Condition: TypeAlias = Any
"""A value of one bit."""


class Int:
    """A 64-bit integer of a kernel: a number of bytes or elements, or an address."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = ir.Constant(I64, value) if isinstance(value, int) else value

    def _with(self, operation: Callable[..., Any], other: Int | int) -> Int:
        return Int(self.builder, operation(self.value, self.like(other).value))

    def like(self, other: Int | int) -> Int:
        """Return another integer as one of the same kernel."""
        return other if isinstance(other, Int) else Int(self.builder, other)

    def __add__(self, other: Int | int) -> Int:
        return self._with(self.builder.add, other)

    def __sub__(self, other: Int | int) -> Int:
        return self._with(self.builder.sub, other)

    def __mul__(self, other: Int | int) -> Int:
        return self._with(self.builder.mul, other)

    def __floordiv__(self, other: Int | int) -> Int:
        """Round towards zero: nothing that is divided here is negative."""
        return self._with(self.builder.sdiv, other)

    def __mod__(self, other: Int | int) -> Int:
        return self._with(self.builder.srem, other)

    def __and__(self, other: Int | int) -> Int:
        return self._with(self.builder.and_, other)

    def __or__(self, other: Int | int) -> Int:
        return self._with(self.builder.or_, other)

    def __xor__(self, other: Int | int) -> Int:
        return self._with(self.builder.xor, other)

    def __rshift__(self, other: Int | int) -> Int:
        return self._with(self.builder.ashr, other)

    def __abs__(self) -> Int:
        return choose(self < 0, Int(self.builder, 0) - self, self)

    def is_(self, relation: str, other: Int | int) -> Condition:
        """Return a condition, of which the relation is "==", "!=", "<", "<=", ">" or ">="."""
        return self.builder.icmp_signed(relation, self.value, self.like(other).value)

    def __lt__(self, other: Int | int) -> Condition:
        return self.is_("<", other)

    def pointer(self, kind: Any) -> Any:
        """Return an address as LLVM's pointer to something."""
        return self.builder.inttoptr(self.value, kind.as_pointer())

    def peek(self, index: int = 0) -> Int:
        """Return one of the integers that lie in a row at an address."""
        return Int(self.builder, self.builder.load((self + 8 * index).pointer(I64)))


def choose(condition: Condition, yes: Int, no: Int) -> Int:
    """Return one of two integers, which are both computed."""
    return Int(yes.builder, yes.builder.select(condition, yes.value, no.value))


def least(*numbers: Int) -> Int:
    """Return the smallest."""
    smallest, *others = numbers
    for other in others:
        smallest = choose(other < smallest, other, smallest)
    return smallest


@contextmanager
def loop(start: Int, stop: Int, step: int | Callable[[Int], Int] = 1) -> Iterator[Int]:
    """Write what is inside for each number from start to stop; a step may depend on the number.

    Such a step is asked for at the end of the body.
    """
    b = start.builder
    before, head = b.block, b.append_basic_block("head")
    body, end = b.append_basic_block("body"), b.append_basic_block("end")
    b.branch(head)
    b.position_at_end(head)
    now = b.phi(I64)
    now.add_incoming(start.value, before)
    i = Int(b, now)
    b.cbranch(i < stop, body, end)
    b.position_at_end(body)
    yield i
    following = i + (step(i) if callable(step) else step)
    now.add_incoming(following.value, b.block)
    b.branch(head)
    b.position_at_end(end)


def copy(target: Int, source: Int, count: Int) -> None:
    """Copy some bytes from one address to another."""
    b, byte = target.builder, ir.IntType(8)
    kind = byte.as_pointer()
    memcpy = b.module.declare_intrinsic("llvm.memcpy", [kind, kind, I64])
    b.call(
        memcpy,
        [target.pointer(byte), source.pointer(byte), count.value, ir.Constant(ir.IntType(1), 0)],
    )
