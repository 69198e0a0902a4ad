"""Calls of a kind that was run before: what depends on the kind alone was decided then.

The kind of a call is its rope, and of all arrays what can be told without reading them: classes,
shapes, strides, dtypes, devices. The first call of a kind goes the long way: it is checked, a path
is chosen, and that path may *bind* it to what is left to do. From then on such a call makes its
key, has looked at what its numbers say, and runs. What is bound answers, or leaves the call to the
long way: so there is one place that words errors.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

from rope_xp._contract.caches import Latest
from rope_xp._contract.call import Call
from rope_xp._contract.typing import Array
from rope_xp._dispatch import choose, find


class Asked(NamedTuple):
    """A call that could be of a known kind."""

    key: Hashable
    """All that what is bound depends on."""
    arrays: tuple[Array, ...]
    rows: tuple[Array, ...]
    """Positions and what they have after the point, found in range, or cos and sin.

    They are as kernels read them. Cos and sin of a model that torch rotates may have columns behind
    those that are read; ``call.angles``, which a path binds by, have not.
    """
    out: tuple[Array, ...] | None


Run: TypeAlias = Callable[[Asked], tuple[Array, ...] | None]
"""What a call is bound to: it returns results, or None for the long way before it writes."""

_kinds = Latest(f"{__name__}._kinds", 512)


def ask(
    rope: Hashable,
    arrays: tuple[Array, ...],
    positions: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
    tables: tuple[Array, Array] | None = None,
) -> Asked | None:
    """Return the key of a call and what else its kind needs, None if it has none.

    Where cos and sin are given as tables, ``rope`` is what else says how they are applied.
    """
    backend = find.by_type.get(type(arrays[0]))
    if backend is None:
        return None
    kind = (rope, axes, inverse, choose.choice.name)
    return backend.asked(kind, arrays, positions, out, tables)  # type: ignore[no-any-return]  # see there


def run(asked: Asked | None, read: Callable[..., Call], *arguments: Any) -> tuple[Array, ...]:
    """Run a call as its kind does, or else the long way: as ``read`` makes it of its arguments."""
    bound: Run | None = None
    if asked is not None:
        try:
            bound = _kinds.now.get(asked.key) or _kinds.get(asked.key)
        except TypeError:  # an argument has no hash, and the long way tells what is wrong with it
            asked = None
    if asked is not None and bound is not None:
        made = bound(asked)
        if made is not None:
            return made
    call = read(*arguments)
    if asked is None:
        return choose.run(call)
    path, results = choose.chosen(call)
    new = None if path is None else path.bind(call, asked, results)
    if new is not None:
        keep(asked, new)
    return results


def known(asked: Asked) -> Any:
    """Return what calls of a kind are bound to, None where it is new."""
    return _kinds.get(asked.key)


def keep(asked: Asked, run: Callable[[Asked], Any]) -> None:
    """Have calls of this kind run so from now on."""
    _kinds.keep(asked.key, run)
