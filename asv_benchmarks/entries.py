"""Each public way to call, and the formula that a user would write: ways.py has the table."""

import contextlib
import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

from .shared import common, ways

NAMES = list(ways.build("numpy", "float32"))
MODES = ["plain", "gradients"]
TARGET = 2e-4
"""Seconds of calls in a row."""


def measure(
    call: Callable[[], Any], formula: Callable[[], Any], rounds: int
) -> tuple[float, float]:
    """Return the least microseconds of both, in turns."""
    best = [float("inf")] * 2
    counts = []
    for function in (call, formula):
        function(), function()
        start = time.perf_counter()
        function()
        counts.append(max(1, int(TARGET / (time.perf_counter() - start))))
    for _ in range(rounds):
        for i, function in enumerate((call, formula)):
            start = time.perf_counter()
            for _ in range(counts[i]):
                function()
            best[i] = min(best[i], (time.perf_counter() - start) / counts[i] * 1e6)
    return best[0], best[1]


@functools.lru_cache(4)
def build(library: str, dtype: str, batch: int, mode: str) -> dict[str, ways.Way]:
    return ways.build(library, dtype, batch, grad=mode == "gradients")


class Entries:
    """Times of one token in each sequence, over those of the formula."""

    version = "1"
    params = (["numpy", "torch"], ["float32", "bfloat16"], [1, 32], MODES, NAMES)
    param_names = ("library", "dtype", "sequences", "mode", "way")

    def setup(self, library: str, dtype: str, batch: int, mode: str, name: str) -> None:
        with common.skipping():
            if importlib.util.find_spec(library) is None:
                raise common.CannotMeasure(f"{library} is not installed")
            if mode == "gradients" and library == "numpy":
                raise common.CannotMeasure("numpy records no gradients")
            self.way = build(library, dtype, batch, mode).get(name)
            if self.way is None:
                raise common.CannotMeasure("autograd records no writes to memory of the caller")

    def track_time_over_formula(
        self, library: str, dtype: str, batch: int, mode: str, name: str
    ) -> float:
        context: Any = contextlib.nullcontext()
        if library == "torch":
            import torch

            torch.set_num_threads(1)
            context = torch.set_grad_enabled(mode == "gradients")
        with context:
            return common.over(*measure(self.way.call, self.way.formula, 3 if common.QUICK else 15))

    track_time_over_formula.unit = "times"
