"""Recent calls: recognize a call like one of the latest few of its rope, without building a key.

The call cache builds and hashes a key of some thirty values. A recent call compares attributes of
arrays with those that its launch is for, and stops at the first that differs. It takes half of the
time, which for one token is most of a call.
"""

import weakref
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.caches import BoundedCache
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Array
from rope_xp._dispatch.choose import choice
from rope_xp._dispatch.find import by_type, find_backend
from rope_xp._dispatch.rope_keys import find_key
from rope_xp.norm import QKNorm, describe_norm

Arrays: TypeAlias = tuple[Array, ...]
RecentLaunch: TypeAlias = Callable[
    [Arrays, Arrays | None, Arrays, DigitTables | None], Arrays | None
]
"""``launch(arrays, out, inputs, tables)`` returns results, or None, before it writes anything,
where the arrays are not those that it is for. ``inputs`` are weights, and positions or cos and sin
as the caller gives them."""
MAX_CALLS = 4
"""Of one rope: q and k alone or together, to new arrays or in place, a prompt or a token."""
RECENT = BoundedCache(f"{__name__}.RECENT", 128)
LATER_HITS = 17
"""After so many hits of calls that are not the first of their rope, one becomes it: tokens after a
prompt. Calls that alternate rarely change places. A prime, as layers repeat by small numbers."""
_LATER_HITS = count()


class GivenTables(NamedTuple):
    """cos and sin of the caller."""

    cos: Array
    sin: Array


CallContext: TypeAlias = tuple[Hashable, ...]
"""All but its rope and arrays that a cached call depends on. A plain tuple is compared at once."""


def describe_context(
    arrays: Arrays, axes: str | None, out: Any, inverse: bool, norm: Any
) -> tuple[CallContext, Arrays] | None:
    """Return the context of a call and the weights that are given, None if it cannot be cached.

    It says of each result whether it is the array itself.
    """
    backend = by_type.get(type(arrays[0])) or find_backend(arrays[0])
    if backend is None or backend.is_compiling():  # a compiler would guard on what caches hold
        return None
    in_place, weights, described_norm = None, (), None
    if out is not None:
        if type(out) is not tuple or len(out) != len(arrays):
            return None
        in_place = arrays[0] is out[0], arrays[-1] is out[-1]
    if norm is not None:
        if type(norm) is not QKNorm:
            return None
        described_norm, weights = describe_norm(norm, len(arrays))
    return (axes, inverse, choice.name, len(arrays), in_place, described_norm), weights


def recall(
    rope: Hashable,
    arrays: Arrays,
    angles: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
    norm: Any,
) -> Arrays | None:
    """Return the results of a call like a recent one, None for any other."""
    described = describe_context(arrays, axes, out, inverse, norm)
    if described is None:
        return None
    context, inputs = described
    if angles is not None:
        inputs += angles if type(angles) is GivenTables else (angles,)
    try:
        rope = find_key(rope)
        recents: tuple[Any, ...] = RECENT.get(rope) or ()
    except TypeError:  # an unhashable option, for which the slow path raises
        return None
    for recent in recents:
        recent_context, launch, tables = recent
        if recent_context == context:
            digits = None if tables is None else tables()
            if tables is None or digits is not None:  # else evicted
                results = launch(arrays, out, inputs, digits)
                if results is not None:
                    if recent is not recents[0] and next(_LATER_HITS) % LATER_HITS == 0:
                        RECENT.store(rope, (recent, *[r for r in recents if r is not recent]))
                    return results  # type: ignore[no-any-return]  # the cache is untyped
    return None


def remember(
    rope: Hashable,
    context: CallContext,
    launch: RecentLaunch,
    tables: "weakref.ref[DigitTables] | None",
) -> None:
    """Recognize calls for which a launch is, in place of the oldest of too many."""
    others = (RECENT.get(rope) or ())[: MAX_CALLS - 1]
    RECENT.store(rope, ((context, launch, tables), *others))
