"""Kernels on numpy's arrays: threads of rope_xp and of its callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rope_xp_backends.cpu import threads as _threads
from support.bits import same, sample
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)


@pytest.mark.parametrize("number", ["1", "2", "3", "7"])
def test_any_number_of_threads(
    path: str, number: str, threads: Callable[[str], None], rng: np.random.Generator
) -> None:
    threads(number)
    for dtype in ("float32", "bfloat16"):
        q, k = sample(rng, 2, 130, 4, 16, dtype=dtype), sample(rng, 2, 130, 1, 16, dtype=dtype)
        expected = truth(rope_xp.apply, q, k, POSITIONS)
        for got, e in zip(rope_xp.apply(q, k, POSITIONS), expected, strict=True):
            same(got, e)
    workers = 0 if _threads._pool is None else _threads._pool._max_workers
    assert workers == int(number) - 1


def test_callers_in_eight_threads(path: str, threads: Callable[[str], None]) -> None:
    threads("3")
    start = threading.Barrier(8)

    def call(seed: int) -> tuple[np.ndarray, np.ndarray]:
        x = sample(np.random.default_rng(seed), 2, 130, 4, 16)
        start.wait(20)
        with rope_xp.use_backend(path):
            return x, [RoPE().rotate(x, POSITIONS) for _ in range(20)][-1]

    with ThreadPoolExecutor(8) as pool:
        for x, got in pool.map(call, range(8)):
            same(got, truth(RoPE().rotate, x, POSITIONS))


@pytest.mark.parametrize("broken", [0, 3])  # in a worker, in the thread that calls
def test_an_exception_comes_after_all_work(broken: int, threads: Callable[[str], None]) -> None:
    threads("4")
    done = []

    def work(start: int, stop: int) -> None:
        if start == broken:
            raise KeyError(start)
        time.sleep(0.1)
        done.append(start)

    with pytest.raises(KeyError, match=str(broken)):
        _threads.share(work, 4, 4)
    assert sorted(done) == [n for n in range(4) if n != broken]


def test_threads_obey_the_errstate_of_the_caller(threads: Callable[[str], None]) -> None:
    threads("3")
    x = np.full((2, 130, 4, 16), np.inf, np.float32)
    with rope_xp.use_backend("chunked"):
        with np.errstate(invalid="ignore"):
            RoPE().rotate(x, POSITIONS)
        with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
            RoPE().rotate(x, POSITIONS)


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5", " "])
def test_a_number_of_threads_that_is_none(
    path: str, number: str, threads: Callable[[str], None]
) -> None:
    threads(number)
    with pytest.raises(RopeError, match="ROPE_XP_NUM_THREADS is .*whole number"):
        RoPE().rotate(np.ones((3, 2, 8), np.float32))
