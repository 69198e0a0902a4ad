"""Clocks that wait for results, and give what is compared its turns."""

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rope_xp._bench.targets import Target

Action: TypeAlias = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Spread:
    """A figure measured several times."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        """Return "median [min, max]"."""
        return f"{digits(self.median)} [{digits(self.least)}, {digits(self.most)}]"


def digits(figure: float) -> str:
    """Return a figure with the three digits that mean something."""
    return f"{figure:.{2 if figure < 10 else 1 if figure < 100 else 0}f}"


def spread(figures: Sequence[float]) -> Spread:
    """Return the median of figures, and between what they lie."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def times_as_fast(ours: Sequence[float], others: Sequence[float]) -> Spread:
    """Return how many times as fast the first is, given the seconds of both in each turn.

    The two of one turn are compared, so that what a busy moment does to both cancels.
    """
    return spread([other / own for own, other in zip(ours, others, strict=True)])


def best_seconds(target: Target, repeat: int, *actions: Action) -> list[float]:
    """Return the shortest time of each action, in seconds, after one call to warm it up.

    The actions take turns, so that a busy moment of the machine hits all of them, in an order that
    changes, so that the memory which one frees is not always the same one's gain or loss. The clock
    stops once what they return has been computed.
    """
    return _best(lambda action: _seconds(target, action), repeat, actions)


def turns_of_seconds(target: Target, repeat: int, *actions: Action) -> list[list[float]]:
    """Return the times of each action, one for each turn; otherwise as :func:`best_seconds`."""
    return _turns(lambda action: _seconds(target, action), repeat, actions)


def best_device_seconds(target: Target, repeat: int, *actions: Action) -> list[float]:
    """Return the shortest time of each action on its device, as :func:`best_seconds`.

    On a GPU by events of the stream, which leave out what the host spends on a call. jax has no
    streams that a caller can mark, and a CPU is its own host: there it is the time of the call.
    """
    event_seconds = _EVENTS.get(target.name)
    if event_seconds is None:
        return best_seconds(target, repeat, *actions)
    return _best(event_seconds, repeat, actions)


def best_microseconds(target: Target, action: Action, loops: int = 500, rounds: int = 9) -> float:
    """Return the time of one of many calls in a row, in the best of several rounds."""
    return min(rounds_of_microseconds(target, action, loops, rounds))


def rounds_of_microseconds(
    target: Target, action: Action, loops: int = 500, rounds: int = 9
) -> list[float]:
    """Return the time of one of many calls in a row, one for each round.

    On an accelerator it waits at the end of each round only: this measures what the host spends.
    """
    wait(target, action())
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(loops):
            results = action()
        wait(target, results)
        taken.append((time.perf_counter() - start) / loops * 1e6)
    return taken


def wait(target: Target, results: tuple[Any, ...]) -> None:
    """Return once results have been computed."""
    for result in results:
        target.wait(result)


def _best(
    seconds: Callable[[Action], float], repeat: int, actions: tuple[Action, ...]
) -> list[float]:
    return [min(times) for times in _turns(seconds, repeat, actions)]


def _turns(
    seconds: Callable[[Action], float], repeat: int, actions: tuple[Action, ...]
) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in actions]
    for turn in range(repeat + 1):
        for i in np.random.default_rng(turn).permutation(len(actions)):
            elapsed = seconds(actions[i])
            if turn > 0:
                taken[i].append(elapsed)
    return taken


def _seconds(target: Target, action: Action) -> float:
    start = time.perf_counter()
    wait(target, action())  # and lets go of what it returned, before the next action allocates
    return time.perf_counter() - start


def _torch_event_seconds(action: Action) -> float:
    cuda = importlib.import_module("torch").cuda
    start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    action()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def _cupy_event_seconds(action: Action) -> float:
    cuda = importlib.import_module("cupy").cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    action()
    stop.record()
    stop.synchronize()
    return float(cuda.get_elapsed_time(start, stop)) / 1e3


_EVENTS = {"torch:gpu": _torch_event_seconds, "cupy:gpu": _cupy_event_seconds}
