"""Time both sides of each threshold of the CPU paths.

Set a constant to the size from which on the choice that it guards is the better one here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from measured_group import Rows
from rope_xp_backends.cpu import native
from rope_xp_backends.numpy import paths as _paths

import rope_xp
from rope_xp._bench import clock, targets

ROPE = rope_xp.RoPE(layout="half")
ROUNDS = 9
NEVER = 1 << 60


@contextmanager
def tune(threshold: str, value: int) -> Iterator[None]:
    """Set a threshold of the native module."""
    before = native.module.tune(threshold, value)
    try:
        yield
    finally:
        native.module.tune(threshold, before)


class Variant(NamedTuple):
    """A rotation into given memory, on a path, with a threshold set to a value."""

    tokens: int
    threshold: str
    value: int
    path: str = "native"

    def action(self) -> tuple[Callable[[], tuple[Any, ...]], int]:
        """Return what takes about a millisecond or one call, and how many calls that is."""
        q, k = (np.ones((1, self.tokens, heads, 128), np.float32) for heads in (32, 8))
        out, positions = (np.empty_like(q), np.empty_like(k)), np.arange(self.tokens)
        call = partial(ROPE.apply, q, k, positions, out=out)

        def run(loops: int) -> tuple[Any, ...]:
            tuned = (
                tune(self.threshold, self.value)
                if self.path == "native"
                else mock.patch.object(_paths, self.threshold, self.value)
            )
            with rope_xp.use_path(self.path), tuned:
                for _ in range(loops):
                    call()
            return ()

        run(1)
        start = time.perf_counter()
        run(10)
        loops = max(int(1e-2 / (time.perf_counter() - start)), 1)
        return partial(run, loops), loops


def microseconds(*variants: Variant) -> list[float]:
    """Return the best time of a call of each, measured in turns."""
    actions, loops = zip(*(variant.action() for variant in variants), strict=True)
    seconds = clock.best_seconds(targets.find("numpy:cpu"), ROUNDS, *actions)
    return [s / n * 1e6 for s, n in zip(seconds, loops, strict=True)]


def kib(tokens: int) -> int:
    """Return the size of q and k."""
    return tokens * 40 * 128 * 4 // 1024


def rows() -> Rows:
    """Return microseconds on both sides of each threshold, by KiB of q and k."""
    found: Rows = {}
    # When a second thread pays.
    for tokens in (16, 64, 128, 192, 256, 384, 512, 1024, 4096):
        one = Variant(tokens, "thread_elements", NEVER)
        two = Variant(tokens, "thread_elements", tokens * 40 * 128 // 2)
        found[f"threads, {kib(tokens)}"] = _named(("1", "2"), one, two)
    # When results are better written past the caches.
    for tokens in (256, 512, 1024, 1536, 2048, 4096, 8192):
        through = Variant(tokens, "large_bytes", NEVER)
        past = Variant(tokens, "large_bytes", 1)
        found[f"streaming, {kib(tokens)}"] = _named(("through", "past"), through, past)
    # How much numpy rotates at once.
    sizes = [1 << n for n in range(17, 24)]
    variants = [Variant(4096, "CHUNK_BYTES", size, "chunked") for size in sizes]
    for size, time_us in zip(sizes, microseconds(*variants), strict=True):
        found[f"chunk, {size // 1024}"] = {"time": time_us}
    return found


def _named(names: tuple[str, ...], *variants: Variant) -> dict[str, float]:
    return dict(zip(names, microseconds(*variants), strict=True))
