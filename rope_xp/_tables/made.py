"""Cos and sin by a kernel where there is one: they are what the pair (1, 0) is turned to."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import given
from rope_xp._arguments.axes import parse_axes
from rope_xp._contract.caches import kept
from rope_xp._contract.call import Call, Lookup, Turn, leaves
from rope_xp._contract.library import Rope
from rope_xp._contract.path import Path, Unavailable
from rope_xp._contract.typing import Array
from rope_xp._dispatch import bound
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.bound import Asked, Run
from rope_xp._dispatch.choose import choice

Tables: TypeAlias = tuple[Array, Array]
_BATCHES = "abcefg"


def at(rope: Rope, positions: Any, like: Array) -> tuple[Tables, Tables | None]:
    """Return cos and sin of positions for arrays such as ``like``, and those that undo them.

    None where they are the same.
    """
    asked = bound.ask((at, rope), (like,), positions, None, None, False)
    known: Bound | None = None if asked is None else bound.known(asked)
    if asked is not None and known is not None:
        return known(asked)
    backend, lookup, inverse = given.at(rope, positions, like)
    tables, again = _made(backend, lookup, asked)
    tables, undo = backend.computed_once(*tables), None
    back = None
    if inverse is not None:
        undo, back = _made(backend, inverse, asked)
        undo = backend.computed_once(*undo)
    if asked is not None and again is not None and (back is None) is (inverse is None):
        bound.keep(asked, Bound(again, back))
    return tables, undo


def cos_sin(backend: Backend, lookup: Lookup) -> Tables:
    """Return cos and sin, (batch..., tokens, r/2), of positions."""
    return _made(backend, lookup, None)[0]


@dataclass(frozen=True)
class Turned:
    """What is left to do for a kind of positions: to turn pairs by them."""

    run: Run
    unit: Array
    pairs: int

    def __call__(self, asked: Asked) -> Tables:
        """Return cos and sin."""
        made = self.run(Asked(asked.key, (self.unit,), asked.rows, None))
        return _parted(made[0], self.pairs)  # type: ignore[index]  # it leaves only ``out`` to others


@dataclass(frozen=True)
class Bound:
    """The same, and what undoes them where that is something else."""

    there: Turned
    back: Turned | None

    def __call__(self, asked: Asked) -> tuple[Tables, Tables | None]:
        """Return cos and sin, and those that undo them."""
        return self.there(asked), None if self.back is None else self.back(asked)


def _made(backend: Backend, lookup: Lookup, asked: Asked | None) -> tuple[Tables, Turned | None]:
    """Return cos and sin, and what makes those of such a kind, None where that is not bound."""
    path = next((path for path in backend.paths if path.makes_tables), None)
    if path is not None and choice.name in (None, path.name) and not backend.is_compiling():
        made = _by(path, backend, lookup, asked)
        if made is not None:
            return made
    return backend.cos_sin(lookup), None


def _by(
    path: Path, backend: Backend, lookup: Lookup, asked: Asked | None
) -> tuple[Tables, Turned | None] | None:
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
    turn = Turn(parse_axes(names, len(names), "x"), "half", 2 * pairs, 0, False)
    unit = backend.xp.broadcast_to(unit, (*rows, 2 * pairs))
    call = Call(backend, (unit,), (lookup,), None, turn)
    if path.objection(call, asked=True) is not None:
        return None
    try:
        results = path.run(call)
    except Unavailable:
        return None
    run: Run | None = None
    if asked is not None:
        run = path.bind(call, asked._replace(arrays=(unit,)), results)
    return _parted(results[0], pairs), None if run is None else Turned(run, unit, pairs)


def _parted(made: Array, pairs: int) -> Tables:
    return made[..., :pairs], made[..., pairs:]


@kept(64)
def _unit(pairs: int, dtype: str) -> np.ndarray:
    """Return pairs (1, -0): a product with 1 is exact, and to add -0 changes no bit.

    Sums of zeros have the sign of -0 only where both do, and there the cosine is positive.
    """
    return np.repeat(np.array([1.0, -0.0], dtype), pairs)
