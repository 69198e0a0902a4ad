"""Memory of arrays: overlap, axes that collapse into one, alignment."""

import math
from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Ints: TypeAlias = tuple[int, ...]

ACCESS = 16
"""Maximum bytes of one memory access."""


class Memory(NamedTuple):
    """The memory of an array. Strides are in bytes."""

    pointer: int
    shape: Ints
    strides: Ints
    itemsize: int
    writeable: bool

    def measure(self) -> tuple[int, int]:
        """Return the address of the first byte, and the one behind the last."""
        start = end = self.pointer
        if 0 in self.shape:
            return start, end
        for step, n in zip(self.strides, self.shape, strict=True):
            if step < 0:
                start += step * (n - 1)
            else:
                end += step * (n - 1)
        return start, end + self.itemsize


def overlaps_itself(memory: Memory) -> bool:
    """Return whether elements may overlap, as no order of the axes nests their strides."""
    if 0 in memory.shape:
        return False
    axes, reach = zip(memory.strides, memory.shape, strict=True), memory.itemsize
    for step, n in sorted([(abs(step), n) for step, n in axes if n > 1]):
        if step < reach:
            return True
        reach = step * (n - 1) + reach
    return False


MAX_WORK = 1 << 20
"""How many places numpy searches for a common element, in milliseconds. The search has no bound
otherwise, as it solves an equation in integers."""


def have_overlap(a: Memory | None, b: Memory | None) -> bool:
    """Return whether two arrays are known to have an element in common, or are too hard to tell."""
    if a is None or b is None:
        return False
    (start, end), (other_start, other_end) = a.measure(), b.measure()
    if end <= other_start or other_end <= start:
        return False  # nearly always; numpy takes 10 us
    first, second = map(_as_array_interface, (a, b))
    try:
        return np.shares_memory(first, second, max_work=MAX_WORK)  # type: ignore[arg-type]  # any bound
    except np.exceptions.TooHardError:
        return True


def _as_array_interface(memory: Memory) -> Any:
    """Return an object that numpy takes for an array, and never reads here."""
    pointer, shape, strides, itemsize, _ = memory
    interface = {"version": 3, "shape": shape, "strides": strides, "data": (pointer, True)}
    return SimpleNamespace(__array_interface__=interface | {"typestr": f"|V{itemsize}"})


class StridedLayout(NamedTuple):
    """Shape and strides of an array, in bytes or elements."""

    shape: Ints
    strides: Ints


class CollapsedDim(NamedTuple):
    """Collapsed axes of batch and tokens."""

    length: int
    steps: Ints
    """The stride in each array, then in each array of angles."""


def collapse_dims(
    axes: Ints,
    arrays: Sequence[StridedLayout | Memory],
    angles: Sequence[StridedLayout | None],
) -> list[CollapsedDim]:
    """Collapse batch and token axes into as few as the strides allow, the outermost first.

    ``axes`` are the batch axes of ``arrays`` (inputs and results) and, last, the tokens axis.
    ``angles`` have axes (batch..., tokens), of which leading ones may be missing; so have slots.
    None stands for implicit positions, which grow by 1 from token to token.
    """
    lengths = [arrays[0].shape[i] for i in axes]
    steps = [[x.strides[i] for i in axes] for x in arrays]
    for layout in angles:
        shape, strides = layout or ((2,), (1,))
        moves = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
        steps.append([0] * (len(axes) - len(moves)) + moves)
    dims = [CollapsedDim(n, tuple([s[i] for s in steps])) for i, n in enumerate(lengths) if n != 1]
    while (pair := _find_collapsible(dims)) is not None:
        outer, inner = (dims[i] for i in pair)
        dims[pair[1]] = CollapsedDim(outer.length * inner.length, inner.steps)
        del dims[pair[0]]
    return dims


def _find_collapsible(dims: list[CollapsedDim]) -> tuple[int, int] | None:
    """Return indices of an outer axis that continues an inner one in every array."""
    for (i, outer), (j, inner) in permutations(enumerate(dims), 2):
        if outer.steps == tuple([step * inner.length for step in inner.steps]):
            return i, j
    return None


def alignment(*numbers: int) -> int:
    """Return the largest power of two, ACCESS at most, that divides all numbers."""
    return math.gcd(ACCESS, *numbers)


def span(lengths: Sequence[int], steps: Sequence[int]) -> int:
    """Return the distance of the last element from the first."""
    return sum((n - 1) * abs(step) for n, step in zip(lengths, steps, strict=True) if n > 1)
