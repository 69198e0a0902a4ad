"""Whether results may be written to ``out``: checked before anything is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rope_xp import _dispatch, _validate
from rope_xp._errors import RopeError
from rope_xp._typing import Array

if TYPE_CHECKING:
    from rope_xp._contract import Backend, Memory


def check(
    backend: Backend,
    names: tuple[str, ...],
    arrays: tuple[Array, ...],
    out: Any,
    read_too: tuple[Array, ...] = (),
) -> tuple[Array, ...]:
    """Return out as a tuple, one array for each of ``arrays``, or raise."""
    if backend.out_refusal is not None:
        msg = f"out= with {backend.name} arrays: {backend.out_refusal}"
        raise TypeError(msg)
    labels = ("out",) if len(arrays) == 1 else tuple(f"out[{i}]" for i in range(len(arrays)))
    if len(arrays) == 1:
        out = (out,)
    elif not isinstance(out, (tuple, list)) or len(out) != len(arrays):
        msg = f"out must be a tuple ({', '.join(names)}) of arrays to write to; got {type(out)}"
        raise TypeError(msg)
    for label, target, name, x in zip(labels, out, names, arrays, strict=True):
        _check_like(backend, label, target, name, x)
    memories = [backend.memory(target) for target in out]
    for label, target, x, memory in zip(labels, out, arrays, memories, strict=True):
        if memory is not None:
            _check_writeable(label, memory)
        objection = backend.out_objection(target, x)
        if objection is not None:
            msg = f"{label}: {objection}"
            raise RopeError(msg)
    _check_overlap(backend, names, arrays, labels, memories, read_too)
    return tuple(out)


def _check_like(backend: Backend, label: str, target: Any, name: str, x: Array) -> None:
    if _dispatch.find(target) is not backend:
        msg = f"{label} must be an array of {backend.name} like {name}; got {type(target)}"
        raise TypeError(msg)
    same = tuple(target.shape) == tuple(x.shape) and target.dtype == x.dtype
    if not same or backend.device(target) != backend.device(x):
        msg = (
            f"{label} is {_validate.describe(backend, target)}; the result for {name} is "
            f"{_validate.describe(backend, x)}"
        )
        raise RopeError(msg)


def _check_writeable(label: str, memory: Memory) -> None:
    if not memory.writeable:
        msg = f"{label} is read-only; pass a writeable array or leave out= away"
        raise RopeError(msg)
    if _overlaps_itself(memory):
        msg = f"{label} is a view whose elements share memory; pass an array of its own"
        raise RopeError(msg)


def _overlaps_itself(memory: Memory) -> bool:
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


def _check_overlap(
    backend: Backend,
    names: tuple[str, ...],
    arrays: tuple[Array, ...],
    labels: tuple[str, ...],
    memories: list[Memory | None],
    read_too: tuple[Array, ...],
) -> None:
    named = [*zip(names, arrays, strict=True), *zip(("cos", "sin"), read_too, strict=False)]
    inputs = [(name, _placed(backend.memory(x))) for name, x in named]
    outputs = [_placed(memory) for memory in memories]
    for i, mine in enumerate(outputs):
        if mine is None:
            continue
        for j, (name, other) in enumerate(inputs):
            if other is None or (i == j and mine.memory[:4] == other.memory[:4]):
                continue
            if _overlap(mine, other):
                msg = (
                    f"{labels[i]} overlaps {name} without being {names[i]} itself; pass "
                    f"{names[i]} for in place, or memory that is not read"
                )
                raise RopeError(msg)
        for j in range(i):
            earlier = outputs[j]
            if earlier is not None and _overlap(mine, earlier):
                msg = f"{labels[j]} and {labels[i]} overlap; each result needs its own memory"
                raise RopeError(msg)


class _Placed(NamedTuple):
    """Memory, and the addresses of its first byte and behind its last."""

    memory: Memory
    start: int
    end: int


def _placed(memory: Memory | None) -> _Placed | None:
    if memory is None:
        return None
    start = end = memory.pointer
    if 0 in memory.shape:
        return _Placed(memory, start, end)
    for step, n in zip(memory.strides, memory.shape, strict=True):
        if step < 0:
            start += step * (n - 1)
        else:
            end += step * (n - 1)
    return _Placed(memory, start, end + memory.itemsize)


def _overlap(a: _Placed, b: _Placed) -> bool:
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
