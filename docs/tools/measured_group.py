"""What is measured together, and the shortest time of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.targets import Target

Rows: TypeAlias = dict[str, dict[str, float]]
UNITS = {"ms": 1e3, "us": 1e6}
TURNS, SHORT_TURNS = 9, 30
SECONDS = 3e-3
"""How long calls are repeated in a turn."""
BEST = f"the shortest of {TURNS} turns, {SHORT_TURNS} where a call takes less than a millisecond"


@dataclass(frozen=True)
class Group:
    """Figures of one unit and statistic, by row and column, and what measures them."""

    unit: str
    measure: Callable[[], Rows]
    statistic: str = BEST
    is_alone: bool = True
    """Whether it has a process of its own, whose memory and threads no other group has used."""


def shortest(target: Target, calls: Mapping[str, Action], unit: str) -> dict[str, float]:
    """Return the shortest time of a call of each, measured in turns in one process."""
    actions, loops = zip(*(_repeat(target, call) for call in calls.values()), strict=True)
    turns = TURNS if max(loops) == 1 else SHORT_TURNS
    seconds = clock.best_seconds(target, turns, *actions)
    return {
        name: UNITS[unit] * time / count
        for name, time, count in zip(calls, seconds, loops, strict=True)
    }


def _repeat(target: Target, call: Action) -> tuple[Action, int]:
    """Return what repeats a call for some milliseconds, and how often."""

    def run(loops: int) -> tuple[Any, ...]:
        for _ in range(loops - 1):
            call()
        return call()

    def seconds(loops: int) -> float:
        start = time.perf_counter()
        clock.wait(target, run(loops))
        return time.perf_counter() - start

    seconds(2)  # compiles, and fills caches
    loops = 1
    while loops < 1 << 14 and seconds(loops) < SECONDS / 2:
        loops *= 2
    return partial(run, loops), loops
