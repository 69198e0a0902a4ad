"""Calls on a GPU as users write them: what launches for calls like them depend on.

To plan a launch takes far longer than to find that of an earlier call. Libraries keep launches by a
key of the options here and of what they read of arrays. What may be an error is left to the slow
path.
"""

import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import AngleSource, Call, TableLookup
from rope_xp._core.path import Path
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose
from rope_xp._dispatch.choose import choice
from rope_xp._dispatch.how import ONE, build_call, builders
from rope_xp.norm import QKNorm, describe_norm, read_norm

Arrays: TypeAlias = tuple[Array, ...]


class UserCall(NamedTuple):
    """The arrays of a call on one library, and what else its launch depends on."""

    arrays: Arrays
    weights: Arrays
    angle_inputs: Arrays
    """Positions of q, then of k where they differ, or cos and sin."""
    out: tuple[Array | None, ...] | None
    """None for new results, or, before a cache, for new q."""
    slots: Array | None
    options: tuple[Hashable, ...]

    @property
    def others(self) -> Arrays:
        """What is read besides q and k."""
        return self.weights + self.angle_inputs + (() if self.slots is None else (self.slots,))


def read_call(
    head: tuple[Any, ...], rest: tuple[Any, ...], angle_inputs: Arrays
) -> UserCall | None:
    """Return a call, None where it may be an error or takes more than a launch.

    ``head`` is what calls have before q: a rope, or the slice of tables and their form. ``rest`` is
    all that follows.
    """
    q, k, _, _, axes, out, norm, slots, cache_axes, how = rest
    arrays, norm = (q,) if how & ONE else (q, k), read_norm(norm)
    outs = (out,) if how & ONE and out is not None else out
    if not _fit_results(outs, slots, arrays):
        return None
    weights: Arrays = ()
    options = *head, *map(type, head[2:3]), axes, cache_axes, how  # True is no offset
    options += choice.name, slots is None
    if norm is not None:
        if type(norm) is not QKNorm or norm.round_between:
            return None
        described, weights = describe_norm(norm, len(arrays))
        options += (described,)
    return UserCall(arrays, weights, angle_inputs, outs, slots, options)


def _fit_results(outs: Any, slots: Any, arrays: Arrays) -> bool:
    """Return whether results are as expected: q is new only where k goes to slots."""
    if outs is None:
        return slots is None
    if type(outs) is not tuple or len(outs) != len(arrays) or outs[-1] is None:
        return False
    return outs[0] is not None if slots is None else type(slots) is type(arrays[0])


def run_slowly(
    head: tuple[Any, ...], rest: tuple[Any, ...], angles: Any
) -> tuple[Call, Path | None, Arrays]:
    """Check the arguments of a call and run it. Tables have one column a pair."""
    q, k, _, _, axes, out, norm, slots, cache_axes, how = rest
    arrays, norm = (q,) if how & ONE else (q, k), read_norm(norm)
    given = out if slots is None else None
    call = build_call(head, arrays, angles, axes, given, norm, how)
    if slots is not None:
        call = builders["add_slots"](call, slots, cache_axes, out)
    return call, *choose.run_on_path(call)


def find_launch(calls: BoundedCache, key: Hashable) -> tuple[Any, DigitTables | None] | None:
    """Return a launch that was kept, and its tables; None where there is none, or no tables."""
    kept = calls.get(key)
    if kept is None or kept[1] is None:
        return kept  # type: ignore[no-any-return]  # as it was stored
    tables = kept[1]()
    return None if tables is None else (kept[0], tables)


def keep_launch(calls: BoundedCache, key: Hashable, launch: Any, source: AngleSource) -> None:
    """Keep a launch, which holds no arrays, and refer weakly to the tables that it reads."""
    tables = weakref.ref(source.tables) if isinstance(source, TableLookup) else None
    calls.store(key, (launch, tables))


def give_results(results: Arrays, rest: tuple[Any, ...]) -> Any:
    """Return the results of a call as its user gets them."""
    *_, out, _, slots, _, how = rest
    if slots is not None:
        return results[0], out[1]  # the cache, of which there is a view
    return results[0] if how & ONE else results
