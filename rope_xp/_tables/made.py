"""Cos and sin by a kernel where there is one: they are what the pair (1, 0) is turned to."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import parse_tables
from rope_xp._arguments.axes import parse_axes
from rope_xp._core.caches import cached
from rope_xp._core.call import Call, RotationSpec, TableLookup, leaves
from rope_xp._core.library import Rope
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._core.typing import Array
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.call_cache import CachedCall, CallSignature
from rope_xp._dispatch.choose import choice

Tables: TypeAlias = tuple[Array, Array]
_BATCHES = "abcefg"


def at(rope: Rope, positions: Any, like: Array) -> tuple[Tables, Tables | None]:
    """Return cos and sin of positions for arrays such as ``like``, and those that undo them.

    None where they are the same.
    """
    signature = call_cache.signature((at, rope), (like,), positions, None, None, False)
    if signature is not None:
        cached = call_cache.CALLS.get(signature.key)
        results = None if cached is None else cached(signature)
        if results is not None:
            return results  # type: ignore[no-any-return]  # the cache is untyped
    backend, lookup, inverse = parse_tables.angles(rope, positions, like)
    tables, forward = _made(backend, lookup, signature)
    tables, undo = backend.materialize(*tables), None
    backward = None
    if inverse is not None:
        undo, backward = _made(backend, inverse, signature)
        undo = backend.materialize(*undo)
    if signature is not None and forward is not None and (backward is None) is (inverse is None):
        call_cache.CALLS.store(signature.key, CachedTables(forward, backward))
    return tables, undo


def cos_sin(backend: Backend, lookup: TableLookup) -> Tables:
    """Return cos and sin, (batch..., tokens, r/2), of positions."""
    return _made(backend, lookup, None)[0]


@dataclass(frozen=True, slots=True)
class UnitRotation:
    """Builds cos and sin for positions of one signature, by rotating unit pairs."""

    rotate: CachedCall
    unit: Array
    pairs: int

    def __call__(self, signature: CallSignature) -> Tables | None:
        """Return cos and sin, None where the slow path must run."""
        results = self.rotate(signature._replace(arrays=(self.unit,)))
        return None if results is None else _parted(results[0], self.pairs)


@dataclass(frozen=True, slots=True)
class CachedTables:
    """The same, and the tables that undo them where those are others."""

    forward: UnitRotation
    backward: UnitRotation | None

    def __call__(self, signature: CallSignature) -> tuple[Tables, Tables | None] | None:
        """Return cos and sin, and those that undo them; None where the slow path must run."""
        tables = self.forward(signature)
        if tables is None or self.backward is None:
            return None if tables is None else (tables, None)
        undo = self.backward(signature)
        return None if undo is None else (tables, undo)


def _made(
    backend: Backend, lookup: TableLookup, signature: CallSignature | None
) -> tuple[Tables, UnitRotation | None]:
    """Return cos and sin, and what builds those of the signature, None where it is not cached."""
    path = next((path for path in backend.paths if path.makes_tables), None)
    if path is not None and choice.name in (None, path.name) and not backend.is_compiling():
        made = _by(path, backend, lookup, signature)
        if made is not None:
            return made
    return backend.cos_sin(lookup), None


def _by(
    path: Path, backend: Backend, lookup: TableLookup, signature: CallSignature | None
) -> tuple[Tables, UnitRotation | None] | None:
    rows = (lookup.tokens,)
    if lookup.whole is not None:
        rows = tuple(lookup.whole.shape)[lookup.components > 0 :]
    pairs = lookup.tables.frequencies.shape[0]
    if not 0 < len(rows) <= len(_BATCHES):
        return None
    unit = backend.asarray(_unit(pairs, backend.dtype_name(lookup.tables.low)), lookup.device)
    if any(type(leaf.array) is not type(unit) for leaf in leaves(lookup)):
        return None  # such as tensors of several devices, or ones that only seem to be there
    names = _BATCHES[: len(rows) - 1] + "sd"
    spec = RotationSpec(parse_axes(names, len(names), "x"), "half", 2 * pairs, 0, False)
    unit = backend.xp.broadcast_to(unit, (*rows, 2 * pairs))
    call = Call(backend, (unit,), (lookup,), None, spec)
    if path.decline_reason(call, forced=True) is not None:
        return None
    try:
        results = path.run(call)
    except PathUnavailable:
        return None
    cached: CachedCall | None = None
    if signature is not None:
        cached = call_cache.specialize(call, path, signature, results)
    rotation = None if cached is None else UnitRotation(cached, unit, pairs)
    return _parted(results[0], pairs), rotation


def _parted(made: Array, pairs: int) -> Tables:
    return made[..., :pairs], made[..., pairs:]


@cached(64)
def _unit(pairs: int, dtype: str) -> np.ndarray:
    """Return pairs (1, -0): a product with 1 is exact, and to add -0 changes no bit.

    Sums of zeros have the sign of -0 only where both do, and there the cosine is positive.
    """
    return np.repeat(np.array([1.0, -0.0], dtype), pairs)
