"""Clocks that wait for results and time actions in turns."""

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
        return f"{digits(self.median)} [{digits(self.least)}, {digits(self.most)}]"


def digits(figure: float) -> str:
    """Return a figure with its three significant digits."""
    return f"{figure:.{2 if figure < 10 else 1 if figure < 100 else 0}f}"


def spread(figures: Sequence[float]) -> Spread:
    return Spread(statistics.median(figures), min(figures), max(figures))


def times_as_fast(ours: Sequence[float], others: Sequence[float]) -> Spread:
    """Return how many times as fast the first is, given the seconds of both in each turn."""
    # Ratios are taken within a turn, so that a busy moment of the machine cancels.
    return spread([other / our for our, other in zip(ours, others, strict=True)])


def turns_of_seconds(target: Target, repeat: int, *actions: Action) -> list[list[float]]:
    """Return the seconds of each action until its results are there, one for each turn."""

    def seconds(action: Action) -> float:
        start = time.perf_counter()
        wait(target, action())  # and frees what it returned, before the next action allocates
        return time.perf_counter() - start

    return take_turns(seconds, repeat, actions)


def best_seconds(target: Target, repeat: int, *actions: Action) -> list[float]:
    """Return the shortest time of each action; otherwise as :func:`turns_of_seconds`."""
    return [min(times) for times in turns_of_seconds(target, repeat, *actions)]


def take_turns(
    seconds: Callable[[Action], float], repeat: int, actions: tuple[Action, ...]
) -> list[list[float]]:
    """Time actions by a function of one of them, in turns after one to warm up."""
    # A busy moment of the machine hits all of them. Their order changes, so that memory freed by
    # one does not always favour the same other.
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(repeat + 1):
        for i in np.random.default_rng(turn).permutation(len(actions)):
            elapsed = seconds(actions[i])
            if turn > 0:
                times[i].append(elapsed)
    return times


def rounds_of_microseconds(
    target: Target, action: Action, loops: int = 500, rounds: int = 9
) -> list[float]:
    """Return the time of one of many calls in a row, one for each round."""
    # On an accelerator it waits at the end of a round only: this measures what the host spends.
    wait(target, action())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(loops):
            results = action()
        wait(target, results)
        times.append((time.perf_counter() - start) / loops * 1e6)
    return times


def wait(target: Target, results: tuple[Any, ...]) -> None:
    for result in results:
        target.wait(result)
