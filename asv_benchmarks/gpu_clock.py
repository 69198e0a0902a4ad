"""What a call takes on a device: behind work that hides the host, with nothing of it in caches.

Before each timing the device reads a GiB, some times over. That leaves nothing of q and k in its
caches, and nothing that was written either: what a write leaves there goes to memory later, which
burdens a copy and a contender alike and pulls their ratio towards 1. While the device reads, the
host launches what is timed. Where it is not done by then it is given more time, up to MOST_READS.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.targets import Target

from .gpu_attempt import Failed, attempt

READ_BYTES = 1 << 30
READS = 2
"""Half a millisecond of an H200."""
MOST_READS = 16
"""jax lets 32 computations wait for a device, and these and CALLS are fewer."""
CALLS = 10
"""Of a contender in a row, where the clock is the host's."""


class Timing(NamedTuple):
    """One timing."""

    seconds: float
    hidden: bool
    """Whether the host was done launching before the device came to it."""


class Device(NamedTuple):
    """What a clock asks of a library."""

    read: Callable[[], Any]
    """Have a GiB read, and wait for nothing."""
    mark: Callable[[], Any]
    """Return an event of the stream."""
    reached: Callable[[Any], bool]
    """Whether the stream has come to an event."""
    between: Callable[[Any, Any], float]
    """Seconds from one event to another, once the stream has come to both."""


Clock = tuple[str, Callable[[Action], Timing]]
"""How it measures, and what returns the timing of a call."""


def clock_of(target: Target) -> Clock:
    """Return the clock of a target."""
    if not target.name.endswith(":gpu"):
        return "wall clock", lambda action: _wall(target, action)
    read = target.put(np.ones(READ_BYTES // 4, np.float32)).sum
    if target.library == "jax":
        seconds = behind_reads(read, lambda results: clock.wait(target, results))
        return f"host, {CALLS} calls behind reads", seconds
    return "events, caches flushed by reading", by_events(_DEVICES[target.library](read))


def by_events(device: Device) -> Callable[[Action], Timing]:
    """Time one call by events of the device."""
    reads = READS

    def seconds(action: Action) -> Timing:
        nonlocal reads
        while True:
            for _ in range(reads):
                device.read()
            start = device.mark()
            results = action()
            stop = device.mark()
            hidden = not device.reached(start)
            took = device.between(start, stop)
            del results
            if hidden or reads >= MOST_READS:
                return Timing(took, hidden)
            reads *= 2

    return seconds


def behind_reads(
    read: Callable[[], Any],
    wait: Callable[[tuple[Any, ...]], None],
    now: Callable[[], float] = time.perf_counter,
) -> Callable[[Action], Timing]:
    """Time calls in a row by the host's clock: with what the device reads before, and without.

    For libraries without events. Calls follow one another, so that what fits into caches may be
    found there: ratios of less than some hundred MiB are those of caches.
    """
    reads = READS

    def seconds(action: Action) -> Timing:
        nonlocal reads
        while True:
            bare, _ = _after(now, wait, [read] * reads)
            took, launched = _after(now, wait, [read] * reads + [action] * CALLS)
            hidden = launched < bare
            if hidden or reads >= MOST_READS:
                return Timing(max(took - bare, 0.0) / CALLS, hidden)
            reads *= 2

    return seconds


def _after(
    now: Callable[[], float],
    wait: Callable[[tuple[Any, ...]], None],
    calls: list[Callable[[], Any]],
) -> tuple[float, float]:
    """Return when all calls are computed, and when the host had launched them."""
    start = now()
    results: Any = ()
    for call in calls:
        results = call()  # in order, so that the last one is computed last
    launched = now() - start
    wait(results if isinstance(results, tuple) else (results,))
    return now() - start, launched


def _wall(target: Target, action: Action) -> Timing:
    start = time.perf_counter()
    clock.wait(target, action())
    return Timing(time.perf_counter() - start, hidden=False)


def in_turns(
    target: Target, seconds: Callable[[Action], Timing], actions: dict[str, Action], repeat: int
) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """Return the timings of all actions, in an order that changes, after two calls of each.

    And why some have none: what fails once is left out of all further turns.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in actions}
    failed: dict[str, str] = {}

    def call(name: str, action: Callable[[], Any]) -> Any:
        result = attempt(action)
        if isinstance(result, Failed):
            timings.pop(name, None)
            failed[name] = str(result)
        return result

    for _ in range(2):
        for name in tuple(timings):
            call(name, lambda name=name: clock.wait(target, actions[name]()))
    for turn in range(repeat):
        names = list(timings)
        for i in np.random.default_rng(turn).permutation(len(names)):
            timing = call(names[i], lambda name=names[i]: seconds(actions[name]))
            if names[i] in timings:
                timings[names[i]].append(timing)
    return timings, failed


def _torch(read: Callable[[], Any]) -> Device:
    cuda = importlib.import_module("torch").cuda

    def between(start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    marked = _marking(lambda: cuda.Event(enable_timing=True))
    return Device(read, marked, lambda event: bool(event.query()), between)


def _cupy(read: Callable[[], Any]) -> Device:
    cuda = importlib.import_module("cupy").cuda

    def between(start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(cuda.get_elapsed_time(start, stop)) / 1e3

    return Device(read, _marking(cuda.Event), lambda event: bool(event.done), between)


def _marking(new: Callable[[], Any]) -> Callable[[], Any]:
    def mark() -> Any:
        event = new()
        event.record()
        return event

    return mark


_DEVICES = {"torch": _torch, "cupy": _cupy}
