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
    tables: tuple[Array, ...] = (),
) -> tuple[Array, ...] | None:
    """Return out as a tuple, one array for each of ``arrays``; None as it is.

    It must not overlap cos and sin, ``tables``, either.
    """
    if out is None:
        return None
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
    _check_overlap(backend, names, arrays, labels, memories, tables)
    return tuple(out)


def _check_like(backend: Backend, label: str, target: Any, name: str, x: Array) -> None:
    if find.find_backend(target) is not backend:
        msg = f"{label} must be an array of {backend.name} like {name}; got {type(target)}"
        raise TypeError(msg)
    decline_reason = backend.unwritable_reason(target, x)
    if decline_reason is not None:
        msg = f"{label}: {decline_reason}"
        raise RopeError(msg)
    # dtypes by their names: another byte order holds the same numbers.
    kinds = [(backend.dtype_name(a), tuple(a.shape), backend.device(a)) for a in (target, x)]
    if kinds[0] != kinds[1]:
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
    tables: tuple[Array, ...],
) -> None:
    named = [*zip(names, arrays, strict=True), *zip(("cos", "sin"), tables, strict=False)]
    inputs = [(name, get_span(backend.memory(x))) for name, x in named]
    outputs = [get_span(memory) for memory in memories]
    for i, output in enumerate(outputs):
        if output is None:
            continue
        for j, (name, x) in enumerate(inputs):
            if x is None or (i == j and output.memory[:4] == x.memory[:4]):
                continue
            if have_overlap(output, x):
                msg = (
                    f"{labels[i]} overlaps {name} without being {names[i]} itself; pass "
                    f"{names[i]} for in place, or memory that is not read"
                )
                raise RopeError(msg)
        for j in range(i):
            earlier = outputs[j]
            if earlier is not None and have_overlap(output, earlier):
                msg = f"{labels[j]} and {labels[i]} overlap; each result needs its own memory"
                raise RopeError(msg)
