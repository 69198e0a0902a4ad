"""Check that results can be written to ``out``, before anything is written."""

from collections.abc import Iterable
from typing import Any

from rope_xp._arguments import checks
from rope_xp._arguments.norm import NAMES
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import Memory, have_overlap, overlaps_itself
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

_NAMES = (("x",), ("q", "k"))
_LABELS = (("out",), ("out[0]", "out[1]"))


def check_out(
    backend: Backend,
    arrays: tuple[Array, ...],
    out: Any,
    inputs: Iterable[tuple[str, Array | None]] = (),
    weights: tuple[Array | None, ...] = (),
    *,
    advise_in_place: bool = True,
) -> tuple[Array, ...] | None:
    """Return out as a tuple, one array for each of ``arrays`` (x, or q and k); None as it is.

    It must not overlap any of ``inputs``, other arrays by argument, or weights of a norm either.
    """
    if out is None:
        return None
    if backend.out_refusal is not None:
        raise TypeError(f"out= with {backend.name} arrays: {backend.out_refusal}")
    names, labels = _NAMES[len(arrays) - 1], _LABELS[len(arrays) - 1]
    if len(arrays) == 1:
        out = (out,)
    elif not isinstance(out, (tuple, list)) or len(out) != len(arrays):
        got = type(out).__name__ + (f" of {len(out)}" if isinstance(out, (tuple, list)) else "")
        raise TypeError(f"out must be a tuple ({', '.join(names)}) of two arrays; got a {got}")
    for label, target, name, x in zip(labels, out, names, arrays, strict=True):
        _check_like(backend, label, target, name, x)
    for label, target, name, weight in zip(labels, out, NAMES, weights, strict=False):
        reason = None if weight is None else backend.unwritable_reason(target, weight)
        if reason is not None:
            raise RopeError(f"{label}, with {name}: {reason}")
    outputs = [_check_writeable(backend, *pair) for pair in zip(labels, out, strict=True)]
    named = [*zip(names, arrays, strict=True), *inputs, *zip(NAMES, weights, strict=False)]
    memories = [(name, backend.memory(x)) for name, x in named if x is not None]
    _refuse_overlaps(names, labels, outputs, memories, advise_in_place=advise_in_place)
    return tuple(out)


def _refuse_overlaps(
    names: tuple[str, ...],
    labels: tuple[str, ...],
    outputs: list[Memory | None],
    memories: list[tuple[str, Memory | None]],
    *,
    advise_in_place: bool,
) -> None:
    first, second = (*outputs, None)[:2]
    if have_overlap(first, second):
        raise RopeError("out[0] and out[1] overlap; each result needs its own memory")
    for own, label, output in zip(names, labels, outputs, strict=True):
        for name, x in memories:
            is_same = own == name and output and x and output[:4] == x[:4]
            if not is_same and have_overlap(output, x):
                in_place = f" but is not {own} itself; pass {own} to rotate in place, or"
                advice = in_place if name in names and advise_in_place else "; pass"
                raise RopeError(f"{label} overlaps {name}{advice} an array that shares no memory")


def _check_like(backend: Backend, label: str, out: Any, name: str, x: Array) -> None:
    if find.find_backend(out) is not backend:
        raise TypeError(f"{label} must be an array of {backend.name} like {name}; got {type(out)}")
    reason = backend.unwritable_reason(out, x)
    if reason is not None:
        raise RopeError(f"{label}: {reason}")
    # dtypes by their names: another byte order holds the same numbers.
    kinds = [(backend.dtype_name(a), tuple(a.shape), backend.device(a)) for a in (out, x)]
    if kinds[0] != kinds[1]:
        shown = [checks.describe(backend, a) for a in (out, x)]
        raise RopeError(f"{label} is {shown[0]}; the result for {name} is {shown[1]}")


def _check_writeable(backend: Backend, label: str, target: Array) -> Memory | None:
    """Return the memory of a result, if it is known."""
    memory = backend.memory(target)
    if memory is None:
        return None
    if not memory.writeable:
        raise RopeError(f"{label} is read-only; pass a writeable array")
    if overlaps_itself(memory):
        raise RopeError(f"{label} is a view whose elements share memory; pass a new array")
    return memory
