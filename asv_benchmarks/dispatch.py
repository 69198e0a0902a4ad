"""What is left of a call when nothing is computed: recognising, checking, choosing."""

import importlib
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import rope_xp

from .shared import common
from .shared.paths import use_path

ROPE = rope_xp.RoPE(layout="half")


def _constant(value: object) -> Callable[..., object]:
    # A Mock would do the same in 20 us.
    def same(*_: object, **__: object) -> object:
        return value

    return same


def _first(*names: str) -> ModuleType:
    """Return the first module that there is: the library of an older commit has others."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])


def track_overhead() -> float:
    """Microseconds of an apply() in numpy that are neither rotation nor angles.

    What computes is replaced by constants. What is left recognises and checks arguments and
    picks the path.
    """
    target, q, k, positions = common.case("numpy:cpu", 1, common.POSITION)
    portable = _first("rope_xp._rotation.portable", "rope_xp._portable")
    read = _first("rope_xp._arguments.positions", "rope_xp._positions")
    name = "_from_host" if hasattr(read, "_from_host") else "read_host"
    clear = getattr(rope_xp, "clear_caches", lambda: None)
    made: list[object] = []
    clear()
    with (
        mock.patch.object(target.backend, "tables", _kept(target.backend.tables, made)),
        use_path("portable"),
    ):
        ROPE.apply(q, k, positions)
    resolved = getattr(read, name)(positions, positions.dtype.type, False, "positions")
    clear()  # of what runs the calls that were made
    loops, rounds = common.LOOPS

    with (
        mock.patch.object(read, name, _constant(resolved)),
        mock.patch.object(target.backend, "tables", _constant(made[0])),
        mock.patch.object(portable, "run", _constant((q, k))),
        use_path("portable"),
    ):
        return common.best_microseconds(
            target, lambda: ROPE.apply(q, k, positions), 10 * loops, rounds
        )


def _kept(function: Callable[..., object], results: list[object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        results.append(function(*arguments))
        return results[-1]

    return call


track_overhead.unit = "us"
# Of version 1 some rotated after all, where what rotates was bound before it was replaced.
# Of version 2 none was cached on this path, of version 3 all were.
track_overhead.version = "4"
