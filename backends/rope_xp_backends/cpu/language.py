"""Integers, vectors, conditions and loops of LLVM, written as in Python.

Functions that take them compute nothing: they emit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

from .plan import FIELDS, NARROW_STEP

I32, I64 = ir.IntType(32), ir.IntType(64)
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
Condition: TypeAlias = Any
"""A value of one bit."""
_POINTER = ir.PointerType()
WIDE_STEP = 16
"""Pairs rotated at once: one vector of AVX-512, 2 of AVX2 or 4 of NEON to work in parallel. Of the
rest NARROW_STEP go together, and the last ones one by one."""


def _operator(name: str) -> Callable[[Int, Int | int], Int]:
    """Return a method that emits one instruction of LLVM."""

    def emit(self: Int, other: Int | int) -> Int:
        instruction = getattr(self.builder, name)
        return Int(self.builder, instruction(self.value, self.like(other).value))

    return emit


class Int:
    """A 64-bit integer of a kernel: a number of bytes or elements, or an address."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = ir.Constant(I64, value) if isinstance(value, int) else value

    def like(self, other: Int | int) -> Int:
        return other if isinstance(other, Int) else Int(self.builder, other)

    __add__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = _operator("mul")
    # As in C these two round towards zero. No dividend here is negative.
    __floordiv__ = _operator("sdiv")
    __mod__ = _operator("srem")
    __and__ = _operator("and_")
    __or__ = _operator("or_")
    __rshift__ = _operator("ashr")

    def __abs__(self) -> Int:
        return choose(self < 0, Int(self.builder, 0) - self, self)

    def is_(self, relation: str, other: Int | int) -> Condition:
        """Return a condition, of which the relation is "==", "!=", "<", "<=", ">" or ">="."""
        return self.builder.icmp_signed(relation, self.value, self.like(other).value)

    def __lt__(self, other: Int | int) -> Condition:
        return self.is_("<", other)

    def is_nonzero(self) -> Condition:
        return self.is_("!=", 0)

    def pointer(self) -> Any:
        return self.builder.inttoptr(self.value, _POINTER)

    def load(self, kind: Any, alignment: int) -> Any:
        return self.builder.load(self.pointer(), align=alignment, typ=kind)

    def store(self, value: Any, alignment: int) -> Any:
        """Write a value to an address, and return the instruction."""
        return self.builder.store(value, self.pointer(), align=alignment)

    def load_i64(self, index: int = 0) -> Int:
        """Return an element of the array of integers at an address."""
        return Int(self.builder, (self + 8 * index).load(I64, 8))


def choose(condition: Condition, yes: Int, no: Int) -> Int:
    """Return one of two integers, which are both computed."""
    return Int(yes.builder, yes.builder.select(condition, yes.value, no.value))


def least(*numbers: Int) -> Int:
    """Return the smallest."""
    smallest, *others = numbers
    for other in others:
        smallest = choose(other < smallest, other, smallest)
    return smallest


# for (i = start; i < stop; i += step) { ... }
@contextmanager
def loop(start: Int, stop: Int, step: int | Callable[[Int], Int] = 1) -> Iterator[Int]:
    """Emit the body of the with statement as a loop. A callable gives the step after the body.

    It branches once a round, behind the body: one more branch costs bfloat16 a tenth.
    """
    b = start.builder
    before, body, end = b.block, b.append_basic_block("body"), b.append_basic_block("end")
    b.cbranch(start < stop, body, end)
    b.position_at_end(body)
    now = b.phi(I64)
    now.add_incoming(start.value, before)
    i = Int(b, now)
    yield i
    following = i + (step(i) if callable(step) else step)
    now.add_incoming(following.value, b.block)
    b.cbranch(following < stop, body, end)
    b.position_at_end(end)


# if (condition) { ... } else { ... }
def list_branches(b: Any, condition: Condition) -> Iterator[bool]:
    """Write both branches of a condition: yield whether it holds."""
    with b.if_else(condition) as (yes, no):
        with yes:
            yield True
        with no:
            yield False


# for (n = first; n + 16 <= end; n += 16) { ... }
# for (; n + 8 <= end; n += 8) { ... }
# for (; n < end; n++) { ... }
def vector_steps(first: Int, end: Int) -> Iterator[tuple[Int, int]]:
    """Write loops over pairs: yield the first pair of a step, and the number of pairs in it."""
    many, few = (end - (end - first) % lanes for lanes in (WIDE_STEP, NARROW_STEP))
    for start, stop, lanes in ((first, many, WIDE_STEP), (many, few, NARROW_STEP), (few, end, 1)):
        with loop(start, stop, lanes) as n:
            yield n, lanes


def unroll(count: int, start: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
    """Yield steps through a constant length: the first component of each, and their number.

    ``start`` are the numbers of the first steps.
    """
    n = 0
    for lanes in start:
        yield n, lanes
        n += lanes
    for lanes in (WIDE_STEP, NARROW_STEP, 4, 1):
        while count - n >= lanes:
            yield n, lanes
            n += lanes


def load_params(plan: Int) -> dict[str, Int]:
    """Load the numbers of a plan by name. LLVM drops those that a function does not use."""
    return {name: plan.load_i64(i) for i, name in enumerate(FIELDS)}


# memcpy(target, source, count);
def copy(target: Int, source: Int, count: Int) -> None:
    """Copy bytes from one address to another."""
    arguments = [target.pointer(), source.pointer(), count.value, ir.Constant(ir.IntType(1), 0)]
    _call(target.builder, "llvm.memcpy.p0.p0.i64", arguments)


# __builtin_prefetch(address, 0, 2);
def prefetch(address: Int) -> None:
    """Fetch an address into the second cache."""
    read, locality, data = (ir.Constant(I32, n) for n in (0, 2, 1))
    _call(address.builder, "llvm.prefetch.p0", [address.pointer(), read, locality, data])


def _call(b: Any, name: str, arguments: list[Any]) -> None:
    function = b.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        function = ir.Function(b.module, signature, name)
    b.call(function, arguments)


# --- vectors -------------------------------------------------------------------------------------


def fill(kind: Any, value: float, lanes: int) -> Any:
    """Return a constant vector."""
    return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)


def shuffle(b: Any, v: Any, w: Any, order: list[int]) -> Any:
    """Return lanes of two vectors, counted through both."""
    return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, len(order)), order))


def broadcast(b: Any, scalar: Any, lanes: int) -> Any:
    """Return a vector of which every lane is a scalar."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return shuffle(b, first, first, [0] * lanes)
