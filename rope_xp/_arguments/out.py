"""Whether results may be written to ``out``: checked before anything is."""

from typing import Any

from rope_xp._arguments import messages
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import Memory, get_span, have_overlap, overlaps_itself
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


def check_out(
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
    for label, memory in zip(labels, memories, strict=True):
        if memory is not None:
            _check_writeable(label, memory)
    _check_overlap(backend, names, arrays, labels, memories, read_too)
    return tuple(out)


def _check_like(backend: Backend, label: str, target: Any, name: str, x: Array) -> None:
    if find.find_backend(target) is not backend:
        msg = f"{label} must be an array of {backend.name} like {name}; got {type(target)}"
        raise TypeError(msg)
    decline_reason = backend.unwritable_reason(target, x)
    if decline_reason is not None:
        msg = f"{label}: {decline_reason}"
        raise RopeError(msg)
    # By their names: where the bytes are in another order, numbers are the same.
    same = backend.dtype_name(target) == backend.dtype_name(x)
    if (
        not same
        or tuple(target.shape) != tuple(x.shape)
        or backend.device(target) != backend.device(x)
    ):
        msg = (
            f"{label} is {messages.describe(backend, target)}; the result for {name} is "
            f"{messages.describe(backend, x)}"
        )
        raise RopeError(msg)


def _check_writeable(label: str, memory: Memory) -> None:
    if not memory.writeable:
        msg = f"{label} is read-only; pass a writeable array or leave out= away"
        raise RopeError(msg)
    if overlaps_itself(memory):
        msg = f"{label} is a view whose elements share memory; pass an array of its own"
        raise RopeError(msg)


def _check_overlap(
    backend: Backend,
    names: tuple[str, ...],
    arrays: tuple[Array, ...],
    labels: tuple[str, ...],
    memories: list[Memory | None],
    read_too: tuple[Array, ...],
) -> None:
    named = [*zip(names, arrays, strict=True), *zip(("cos", "sin"), read_too, strict=False)]
    inputs = [(name, get_span(backend.memory(x))) for name, x in named]
    outputs = [get_span(memory) for memory in memories]
    for i, mine in enumerate(outputs):
        if mine is None:
            continue
        for j, (name, other) in enumerate(inputs):
            if other is None or (i == j and mine.memory[:4] == other.memory[:4]):
                continue
            if have_overlap(mine, other):
                msg = (
                    f"{labels[i]} overlaps {name} without being {names[i]} itself; pass "
                    f"{names[i]} for in place, or memory that is not read"
                )
                raise RopeError(msg)
        for j in range(i):
            earlier = outputs[j]
            if earlier is not None and have_overlap(mine, earlier):
                msg = f"{labels[j]} and {labels[i]} overlap; each result needs its own memory"
                raise RopeError(msg)
