"""Clocks that wait for results and time actions in turns."""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from rope_xp._bench.targets import Target

Action: TypeAlias = Callable[[], tuple[Any, ...]]


def digits(figure: float) -> str:
    """Return a figure with its three significant digits."""
    return f"{figure:.{2 if figure < 10 else 1 if figure < 100 else 0}f}"


def best_seconds(target: Target, repeat: int, *actions: Action) -> list[float]:
    """Return the shortest time of each action until its results are there."""
    # A busy moment of the machine hits all of them in a turn. Their order changes, so that memory
    # freed by one does not always favour the same other.
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(repeat + 1):
        for i in np.random.default_rng(turn).permutation(len(actions)):
            start = time.perf_counter()
            wait(target, actions[i]())  # and frees what it returned, before the next one allocates
            if turn > 0:  # after one to warm up
                times[i].append(time.perf_counter() - start)
    return [min(each) for each in times]


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
