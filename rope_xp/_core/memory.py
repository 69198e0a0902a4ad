"""How arrays lie in memory: where they overlap, which axes are one, what their rows align to."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Ints: TypeAlias = tuple[int, ...]

ACCESS = 16
"""Bytes that one instruction reads or writes, at most."""


class Memory(NamedTuple):
    """Where the elements of an array lie."""

    pointer: int
    shape: Ints
    strides: Ints
    """In bytes."""
    itemsize: int
    writeable: bool


# --- overlap -------------------------------------------------------------------------------------


def overlaps_itself(memory: Memory) -> bool:
    """Return whether no order of the axes nests them: each step beyond all that lies within."""
    if 0 in memory.shape:
        return False
    reach = memory.itemsize
    axes = zip(memory.strides, memory.shape, strict=True)
    for step, n in sorted((abs(step), n) for step, n in axes if n > 1):
        if step < reach:
            return True
        reach = step * (n - 1) + reach
    return False


class Placed(NamedTuple):
    """Memory, and the addresses of its first byte and behind its last."""

    memory: Memory
    start: int
    end: int


def placed(memory: Memory | None) -> Placed | None:
    """Return where memory starts and ends, if it is known."""
    if memory is None:
        return None
    start = end = memory.pointer
    if 0 in memory.shape:
        return Placed(memory, start, end)
    for step, n in zip(memory.strides, memory.shape, strict=True):
        if step < 0:
            start += step * (n - 1)
        else:
            end += step * (n - 1)
    return Placed(memory, start, end + memory.itemsize)


def overlap(a: Placed, b: Placed) -> bool:
    """Return whether two arrays have an element in common."""
    if a.end <= b.start or b.end <= a.start:
        return False  # nearly always; to ask numpy takes 10 us
    return np.shares_memory(_StandIn(a.memory), _StandIn(b.memory))


class _StandIn:
    """An object that numpy takes for an array at an address, and never reads."""

    def __init__(self, memory: Memory) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": memory.shape,
            "strides": memory.strides,
            "typestr": f"|V{memory.itemsize}",
            "data": (memory.pointer, True),
        }


# --- rows ----------------------------------------------------------------------------------------


class StridedLayout(NamedTuple):
    """How an array lies, but for where. Strides are in bytes or elements, as the reader has it."""

    shape: Ints
    strides: Ints


class CollapsedDim(NamedTuple):
    """An axis that leads to rows: to tokens, of one batch or of many."""

    length: int
    steps: Ints
    """Of each array, then of each array of angles."""


def collapse_dims(
    axes: Ints, arrays: Sequence[StridedLayout], angles: Sequence[StridedLayout]
) -> list[CollapsedDim]:
    """Return as few axes as lead to all rows of all arrays, the outermost first.

    Parameters
    ----------
    axes : tuple of int
        The axes of the arrays that are batch and, last, tokens.
    arrays : sequence of Laid
        To rotate, and results.
    angles : sequence of Laid
        With axes (batch..., tokens), as far as they have them. None at all stands for positions
        that are counted, which go on by 1 from token to token.
    """
    lengths = [arrays[0].shape[i] for i in axes]
    steps = [[x.strides[i] for i in axes] for x in arrays]
    for shape, strides in angles:
        own = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
        steps.append([0] * (len(axes) - len(own)) + own)
    if not angles:
        steps.append([0] * (len(axes) - 1) + [1])
    found = [
        CollapsedDim(n, tuple([step[i] for step in steps])) for i, n in enumerate(lengths) if n != 1
    ]
    while (pair := _foldable(found)) is not None:
        outer, inner = (found[i] for i in pair)
        found[pair[1]] = CollapsedDim(outer.length * inner.length, inner.steps)
        del found[pair[0]]
    return found


def _foldable(found: list[CollapsedDim]) -> tuple[int, int] | None:
    """Return two axes of which the second, as long as both, leads where they lead."""
    for i, outer in enumerate(found):
        for j, inner in enumerate(found):
            if i != j and all(
                a == b * inner.length for a, b in zip(outer.steps, inner.steps, strict=True)
            ):
                return i, j
    return None


def alignment(*numbers: int) -> int:
    """Return the largest power of two, ACCESS at most, that divides all numbers."""
    return math.gcd(ACCESS, *numbers)


def span(lengths: Sequence[int], steps: Sequence[int]) -> int:
    """Return how far the last element lies from the first."""
    return sum((n - 1) * abs(step) for n, step in zip(lengths, steps, strict=True) if n > 1)
