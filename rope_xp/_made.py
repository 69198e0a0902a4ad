"""Cos and sin by a kernel where there is one: they are what the pair (1, 0) is turned to."""

import numpy as np

from rope_xp._arguments.axes import parse_axes
from rope_xp._contract.caches import kept
from rope_xp._contract.call import Call, Lookup, Turn, leaves
from rope_xp._contract.path import Path, Unavailable
from rope_xp._contract.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.choose import choice

_BATCHES = "abcefg"


def cos_sin(backend: Backend, lookup: Lookup) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2), of positions."""
    path = next((path for path in backend.paths if path.makes_tables), None)
    if path is not None and choice.name in (None, path.name) and not backend.is_compiling():
        made = _by(path, backend, lookup)
        if made is not None:
            return made
    return backend.cos_sin(lookup)


def _by(path: Path, backend: Backend, lookup: Lookup) -> tuple[Array, Array] | None:
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
        (made,) = path.run(call)
    except Unavailable:
        return None
    tables = backend.xp.stack((made[..., :pairs], made[..., pairs:]))
    return tables[0], tables[1]


@kept(64)
def _unit(pairs: int, dtype: str) -> np.ndarray:
    """Return pairs (1, -0): a product with 1 is exact, and to add -0 changes no bit.

    Sums of zeros have the sign of -0 only where both do, and there the cosine is positive.
    """
    return np.repeat(np.array([1.0, -0.0], dtype), pairs)
