"""Call cache: skip validation and dispatch for signatures seen before.

The signature of a call is its rope and, of every array, what is known without reading it: class,
dtype, shape, strides, device. The first call of a signature takes the slow path: it is parsed,
checked and dispatched. What ran it is then specialized for the signature and cached, and later
calls only build their signature, look it up and run.

A cached call holds a plan and no arrays: arrays, positions and given cos and sin come with each
call, and tables are referenced weakly. It declines what it cannot be sure of, such as results whose
memory may overlap; then the slow path runs, the one place that words errors.
"""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, CosSin, PositionRange, RelativeAngles, TableLookup
from rope_xp._core.library import DigitTables
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find
from rope_xp._rotation import portable

Arrays: TypeAlias = tuple[Array, ...]
Apart: TypeAlias = Callable[[Array, Array], bool]


class CallSignature(NamedTuple):
    """A call that may be cached."""

    key: Hashable
    """All that a cached call depends on."""
    arrays: Arrays
    angle_inputs: Arrays
    """Whole positions and their fractions, checked, or cos and sin, as kernels read them."""
    position_range: PositionRange | None
    """The range of positions; None for cos and sin."""
    out: Arrays | None


Launch: TypeAlias = Callable[[Arrays, Arrays | None, Arrays, DigitTables | None], Arrays | None]
"""Runs calls of one signature: ``launch(arrays, out, angle_inputs, tables)`` returns results.

It returns None before it writes anything, where the slow path must run.
"""

CALLS = BoundedCache(f"{__name__}.CALLS", 512)


@dataclass(frozen=True, slots=True)
class CachedCall:
    """What runs the calls of one signature.

    Parameters
    ----------
    launch : Launch
        Runs the chosen path, without arrays of its own.
    tables : weak reference to Digits, or None
        The tables that angles are looked up in; None where cos and sin are given.
    are_apart : callable
        Returns whether two arrays surely share no memory.
    """

    launch: Launch
    tables: "weakref.ref[DigitTables] | None"
    are_apart: Apart

    def __call__(self, signature: CallSignature) -> Arrays | None:
        """Return results, None where the slow path must run."""
        _, arrays, angle_inputs, _, out = signature
        tables = None
        if self.tables is not None:
            tables = self.tables()
            if tables is None:  # evicted
                return None
        given = angle_inputs if tables is None else ()
        if out is not None and not _are_disjoint(self.are_apart, arrays, out, given):
            return None
        return self.launch(arrays, out, angle_inputs, tables)


def signature(
    rope: Hashable,
    arrays: Arrays,
    positions: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
    tables: tuple[Array, Array] | None = None,
) -> CallSignature | None:
    """Return the signature of a call, None if it cannot be cached.

    Where cos and sin are given as tables, ``rope`` is what else says how they are applied.
    """
    backend = find.by_type.get(type(arrays[0])) or find.find_backend(arrays[0])
    if backend is None:
        return None
    context = rope, axes, inverse, choose.choice.name, len(arrays)
    return backend.signature(context, arrays, positions, out, tables)  # type: ignore[no-any-return]  # as above


def run(
    signature: CallSignature | None, parse: Callable[..., Call], *arguments: Any
) -> tuple[Array, ...]:
    """Run a cached call, or else the slow path: ``parse`` makes a Call of the arguments."""
    if signature is not None:
        try:
            cached = CALLS.get(signature.key)
        except TypeError:  # an argument has no hash; the slow path says what is wrong with it
            signature = cached = None
        if cached is not None:
            results = cached(signature)
            if results is not None:
                return results  # type: ignore[no-any-return]  # the cache is untyped
    call = parse(*arguments)
    path, results = choose.chosen(call)
    if signature is not None:
        specialized = specialize(call, path, signature, results)
        if specialized is not None:
            CALLS.store(signature.key, specialized)
    return results


def specialize(
    call: Call, path: Path | None, signature: CallSignature, results: Arrays
) -> CachedCall | None:
    """Return what runs every call of a signature, given one that ran on a path."""
    backend = call.backend
    if len(call.angles) != 1 or isinstance(call.angles[0], RelativeAngles):
        return None
    source = call.angles[0]
    launch = None if path is None else path.specialize(call, signature, results)
    if launch is None:
        if isinstance(source, CosSin) and source.cos.shape != signature.angle_inputs[0].shape:
            return None  # a view of some columns, which only a kernel's strides tell
        launch = _replay(call, portable.run if path is None else path.run)
    tables = weakref.ref(source.tables) if isinstance(source, TableLookup) else None
    return CachedCall(launch, tables, backend.are_apart)


def _replay(call: Call, run_path: Callable[[Call], Arrays]) -> Launch:
    """Return what runs a path on calls like one that was checked."""
    backend, spec, source = call.backend, call.spec, call.angles[0]
    known = None
    if isinstance(source, TableLookup):
        known = source.device, source.tokens, source.position_range, source.components

    def launch(
        arrays: Arrays, out: Arrays | None, angle_inputs: Arrays, tables: DigitTables | None
    ) -> Any:
        angles: CosSin | TableLookup
        if known is None:
            angles = CosSin(*angle_inputs)
        else:
            if angle_inputs and angle_inputs[0].ndim == (
                known[-1] > 0
            ):  # without an axis for the only token
                angle_inputs = tuple([row[..., None] for row in angle_inputs])
            angles = TableLookup(tables, *(*angle_inputs, None, None)[:2], *known)  # type: ignore[arg-type,call-arg]  # as a lookup has them
        try:
            return run_path(Call(backend, arrays, (angles,), out, spec))
        except PathUnavailable:
            return None

    return launch


def operands_of(arrays: Arrays, out: Any) -> tuple[Arrays, Hashable] | None:
    """Return arrays and the results that are other arrays, and which results are in place.

    None where ``out`` is not what it must be.
    """
    if out is None:
        return arrays, None
    if type(out) is not tuple or len(out) != len(arrays):
        return None
    in_place = tuple(map(is_, arrays, out))
    return (arrays if all(in_place) else arrays + out), in_place


def _are_disjoint(are_apart: Apart, arrays: Arrays, out: Arrays, tables: Arrays) -> bool:
    """Return whether each result is its own array, or surely disjoint from all others."""
    inputs = [x for x, y in zip(arrays, out, strict=True) if x is not y]
    inputs += tables
    for i, y in enumerate(out):
        for other in (*out[:i], *inputs):
            if other is y or not are_apart(other, y):
                return False
    return True
