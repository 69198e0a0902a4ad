"""The path of jax: the portable path under ``jax.jit``, which inlines it inside another jit."""

from collections.abc import Callable
from typing import Any

import jax

from rope_xp._core.call import Call, CosSin, TableLookup
from rope_xp._core.path import Path
from rope_xp._core.pytrees import PYTREE_CLASSES
from rope_xp._core.tables import DigitTables
from rope_xp._rotation import portable

# A call is a pytree: arrays are traced, the rest is static and part of jit's cache key. Table keys
# are dropped, so that ropes that differ in numbers alone share compiled functions.
_LOOKUP = ["device", "tokens", "position_range", "components"]
_DROPPED: Any = ["table_key", ("table_key",)]  # jax < 0.10 takes each item for a set of names
for kind, arrays, plain, dropped in (
    (Call, ["arrays", "angles", "out", "weights", "slots"], ["backend", "spec"], []),
    (TableLookup, ["tables", "whole", "part"], _LOOKUP, _DROPPED),
    (DigitTables, [*DigitTables.__match_args__], [], ["handle", ("handle",)]),
    (CosSin, ["cos", "sin"], [], []),
    *((kind, [*arrays], [*plain], []) for kind, arrays, plain in PYTREE_CLASSES),
):
    jax.tree_util.register_dataclass(kind, arrays, plain, dropped)


class Jit(Path):
    """The portable path, compiled."""

    name = "jit"
    normalizes = True

    def __init__(self) -> None:
        self._run: Callable[[Call], tuple[Any, ...]] = jax.jit(portable.run)

    def run(self, call: Call) -> tuple[Any, ...]:
        return self._run(call)
