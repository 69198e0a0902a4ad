"""What a call takes on a device: behind work that hides the host, with nothing of it in caches.

Before each timing a GPU reads a GiB, some times over. That leaves nothing of q and k in its caches,
and nothing that was written either: what a write leaves there goes to memory later, which burdens a
copy and a contender alike and pulls their ratio towards 1. While the device reads, the host
launches what is timed. If it is not done by then, the timing is repeated behind more reads.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.targets import Target

READ_BYTES = 1 << 30
READS = 2
"""Half a millisecond of an H200."""
MOST_READS = 16
"""jax lets 32 computations wait for a device, and these and CALLS are fewer."""
CALLS = 10
"""Of a contender in a row, where the clock is the host's."""


class Timing(NamedTuple):
    """One timing, and whether the host was done launching before the device came to it."""

    seconds: float
    hidden: bool


Behind = Callable[[int, Action], Timing]
"""Times a call behind so many reads."""
Clock = tuple[str, Callable[[Action], Timing]]
"""How it measures, and what returns the timing of a call."""


def clock_of(target: Target) -> Clock:
    """Return the clock of a target."""
    if target.name.endswith(":cpu"):
        return "wall clock", lambda action: _wall(target, action)
    read = target.put(np.ones(READ_BYTES // 4, np.float32)).sum
    if target.library == "jax":
        behind = by_host(read, lambda results: clock.wait(target, results))
        return f"host, {CALLS} calls behind reads", hiding(behind)
    cuda = importlib.import_module(target.library).cuda
    if target.library == "torch":
        behind = by_events(
            read, lambda: cuda.Event(enable_timing=True), cuda.Event.query, cuda.Event.elapsed_time
        )
    else:
        behind = by_events(read, cuda.Event, lambda event: event.done, cuda.get_elapsed_time)
    return "events, caches flushed by reading", hiding(behind)


def hiding(behind: Behind) -> Callable[[Action], Timing]:
    """Time behind more and more reads, until they hide the host or are MOST_READS."""
    reads = READS

    def timing(action: Action) -> Timing:
        nonlocal reads
        while not (found := behind(reads, action)).hidden and reads < MOST_READS:
            reads *= 2
        return found

    return timing


def by_events(
    read: Callable[[], Any],
    event: Callable[[], Any],
    reached: Callable[[Any], bool],
    milliseconds: Callable[[Any, Any], float],
) -> Behind:
    """Time one call by events of the stream."""

    def behind(reads: int, action: Action) -> Timing:
        for _ in range(reads):
            read()
        start, stop = event(), event()
        start.record()
        results = action()
        stop.record()
        hidden = not reached(start)
        stop.synchronize()
        del results
        return Timing(float(milliseconds(start, stop)) / 1e3, hidden)

    return behind


def by_host(
    read: Callable[[], Any],
    wait: Callable[[tuple[Any, ...]], None],
    now: Callable[[], float] = time.perf_counter,
) -> Behind:
    """Time calls in a row by the host's clock: with what the device reads before, and without.

    For libraries without events. Calls follow one another, so that what fits into caches may be
    found there: ratios of less than some hundred MiB are those of caches.
    """

    def launched_and_done(calls: list[Callable[[], Any]]) -> tuple[float, float]:
        start, results = now(), None
        for call in calls:
            results = call()  # in order, so that the last one is computed last
        launched = now() - start
        wait(results if isinstance(results, tuple) else (results,))
        return launched, now() - start

    def behind(reads: int, action: Action) -> Timing:
        _, bare = launched_and_done([read] * reads)
        launched, done = launched_and_done([read] * reads + [action] * CALLS)
        return Timing(max(done - bare, 0.0) / CALLS, launched < bare)

    return behind


def _wall(target: Target, action: Action) -> Timing:
    start = time.perf_counter()
    clock.wait(target, action())
    return Timing(time.perf_counter() - start, hidden=False)


class Failed(NamedTuple):
    """What an action raised."""

    error: Exception

    def __str__(self) -> str:
        return " ".join(str(self.error).split())[:300] or type(self.error).__name__


def attempt(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns, or Failed."""
    try:
        return action(*arguments)
    except Exception as error:  # noqa: BLE001  # others' code may raise anything on a GPU
        return Failed(error)


def in_turns(
    target: Target, timing: Callable[[Action], Timing], actions: dict[str, Action], repeat: int
) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """Return the timings of all actions, in an order that changes, after two calls of each.

    And why some have none: what fails once is left out of all further turns.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in actions}
    failed: dict[str, str] = {}
    for turn in range(-2, repeat):
        names = list(timings)
        for i in np.random.default_rng(turn + 2).permutation(len(names)):
            name = names[i]
            found = attempt(
                timing if turn >= 0 else lambda call: clock.wait(target, call()), actions[name]
            )
            if isinstance(found, Failed):
                del timings[name]
                failed[name] = str(found)
            elif turn >= 0:
                timings[name].append(found)
    return timings, failed
