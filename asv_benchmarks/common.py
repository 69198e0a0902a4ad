"""What the benchmarks share: the targets, inputs made once, and clocks that wait for results.

Parameters are plain strings that never depend on what is installed, so that results of two
machines can be laid side by side; what is absent is skipped in setup, with the reason.

asv_runner 0.3.2 runs setup again before every timed call, and with a setup it times calls one by
one. Hence inputs are memoised, and what takes microseconds is looped inside a ``track_``.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from rope_xp import _targets
from rope_xp._targets import Target
from rope_xp._typing import Array

TARGETS = list(_targets.NAMES)
LAYOUTS = ["interleaved", "half", "interleaved_to_half"]
DTYPES = ["float32", "bfloat16"]
BASE = 500_000.0


class Case(NamedTuple):
    """Inputs of one attention layer of Llama-3-8B, on a target."""

    target: Target
    q: Array
    k: Array
    positions: Array


def find(name: str) -> Target:
    """Return a target, or tell asv to skip it."""
    target = _targets.find(name)
    if isinstance(target, str):
        raise SkipNotImplemented(f"{name}: {target}")
    return target


def numpy_dtype(name: str) -> np.dtype:
    """Return a dtype by name, or tell asv to skip it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise SkipNotImplemented("bfloat16: ml_dtypes is not installed") from error
    return np.dtype(ml_dtypes.bfloat16)


# asv runs each combination of parameters in its own process, so one entry is enough.
@lru_cache(maxsize=1)
def case(name: str, tokens: int, start: int = 0, dtype: str = "float32") -> Case:
    """Return inputs of ``tokens`` tokens from position ``start``; the same at every call."""
    target = find(name)
    random = np.random.default_rng(0)
    q, k = (
        random.standard_normal((1, tokens, heads, 128), np.float32).astype(numpy_dtype(dtype))
        for heads in (32, 8)
    )
    positions = np.arange(start, start + tokens, dtype=np.int32)
    return Case(target, *(target.put(x) for x in (q, k, positions)))


def synchronise(target: Target, results: tuple[Array, ...]) -> None:
    """Return once results have been computed."""
    for result in results:
        target.wait(result)


def best_microseconds(
    target: Target, call: Callable[[], tuple[Array, ...]], loops: int = 500, rounds: int = 9
) -> float:
    """Return the time of one of many calls in a row, in the best of several rounds.

    On an accelerator it waits at the end of each round only: this measures what the host spends.
    """
    synchronise(target, call())
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(loops):
            results = call()
        synchronise(target, results)
        best = min(best, time.perf_counter() - start)
    return best / loops * 1e6
