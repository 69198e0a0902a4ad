"""Paths of jax: the portable path under ``jax.jit``, which inlines it inside another jit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from rope_xp._core.call import Call, CosSin, RelativeAngles, TableLookup
from rope_xp._core.library import TREES, DigitTables
from rope_xp._core.path import Path
from rope_xp._rotation import portable

from . import gpu

# A call is a pytree: arrays are traced, the rest is static and part of jit's cache key. Table keys
# are dropped, so that ropes that differ in numbers alone share compiled functions.
_LOOKUP = ["device", "tokens", "position_range", "components"]
_DROPPED: Any = ["table_key", ("table_key",)]  # jax < 0.10 takes each item for a set of names
for kind, arrays, plain, dropped in (
    (Call, ["arrays", "angles", "out"], ["backend", "spec"], []),
    (TableLookup, ["tables", "whole", "part"], _LOOKUP, _DROPPED),
    (DigitTables, [*DigitTables.__match_args__], [], []),
    (CosSin, ["cos", "sin"], [], []),
    (RelativeAngles, ["new", "old"], [], []),
    *((kind, [*arrays], [*plain], []) for kind, arrays, plain in TREES),
):
    jax.tree_util.register_dataclass(kind, arrays, plain, dropped)


class Jit(Path):
    """The portable path, compiled."""

    name = "jit"

    def __init__(self) -> None:
        self._run: Callable[[Call], tuple[Any, ...]] = jax.jit(portable.run)

    def run(self, call: Call) -> tuple[Any, ...]:
        """Compile once for each signature."""
        return self._run(call)


class JitGpu(Jit):
    """The same with the rotation of gpu.py."""

    name = "jit-gpu"

    def __init__(self) -> None:
        self._run = jax.jit(partial(portable.run, rotate=gpu.rotate))

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline other devices. That of a trace is a guess, as numbers are the same."""
        if forced:
            return None
        device = call.backend.device(call.arrays[0])
        platform = jax.default_backend() if device is None else device.platform
        return (
            None if platform == "gpu" else f"it is spelled for GPUs, and this runs on a {platform}"
        )
