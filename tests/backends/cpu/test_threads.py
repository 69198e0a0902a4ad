"""Kernels on numpy's arrays: threads of rope_xp and of its callers."""

import importlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rope_xp_backends.cpu import threads as _threads
from support.bits import same, sample
from support.programs import printed
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)


@pytest.mark.parametrize("number", ["1", "2", "3", "7"])
def test_any_number_of_threads_gives_the_same_bits(path, number, threads, rng):
    threads(number)
    for dtype in ("float32", "bfloat16"):
        q, k = (sample(rng, 2, 130, n, 16, dtype=dtype) for n in (4, 1))
        same(rope_xp.apply(q, k, POSITIONS), truth(rope_xp.apply, q, k, POSITIONS))
    assert len(_threads._workers) == int(number) - 1


def test_callers_in_eight_threads_get_their_own_results(path, threads):
    threads("3")
    start = threading.Barrier(8)

    def call(seed):
        x = sample(np.random.default_rng(seed), 2, 130, 4, 16)
        start.wait(20)
        with rope_xp.use_path(path):
            return x, [RoPE().rotate(x, POSITIONS) for _ in range(20)][-1]

    with ThreadPoolExecutor(8) as pool:
        for x, got in pool.map(call, range(8)):
            same(got, truth(RoPE().rotate, x, POSITIONS))


@pytest.mark.parametrize("in_worker", [False, True])
def test_an_exception_of_a_part_is_raised_when_no_part_runs(in_worker, threads):
    threads("4")
    caller, together, running = threading.current_thread(), threading.Barrier(4), []

    def work(start, stop):
        together.wait(20)
        is_worker = threading.current_thread() is not caller
        if is_worker == in_worker:
            raise KeyError(is_worker)
        running.append(start)
        time.sleep(0.1)
        running.remove(start)

    with pytest.raises(KeyError, match=str(in_worker)):
        _threads.run_in_parts(work, 4, 4)
    assert running == []
    _threads.run_in_parts(lambda *_: running.append(1), 4, 4)
    assert len(running) == 4


@pytest.mark.parametrize("started", [0, 1])
def test_parts_run_once_where_threads_cannot_start(path, started, threads, monkeypatch, rng):
    threads("4")
    start, attempts = threading.Thread.start, []

    def start_or_fail(thread):
        attempts.append(thread)
        if len(attempts) > started:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    x, parts = sample(rng, 2, 130, 4, 16), []
    expected = truth(RoPE().rotate, x, POSITIONS)
    for _ in range(10):
        y = x.copy()
        same(RoPE().rotate(y, POSITIONS, out=y), expected)
    _threads.run_in_parts(lambda *part: parts.append(part), 4, 4)
    _threads.run_in_parts(lambda *_: time.sleep(0.01), 4, 4)  # has workers empty their queue
    assert sorted(parts) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert len(_threads._workers) == started


@pytest.mark.skipif(os.name != "posix", reason="this system sends no such signals")
@pytest.mark.parametrize("kind", ["parts", "arrays"])
def test_handlers_that_raise_are_obeyed_when_no_part_runs(kind):
    if kind != "parts":
        pytest.importorskip("llvmlite")
    printed("interrupted_calls.py", kind, options=("-W", "error"), ROPE_XP_NUM_THREADS="8")


def test_workers_obey_the_errstate_of_the_caller(threads):
    threads("3")
    x = np.full((2, 130, 4, 16), np.inf, np.float32)
    with rope_xp.use_path("chunked"):
        with np.errstate(invalid="ignore"):
            RoPE().rotate(x, POSITIONS)
        with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
            RoPE().rotate(x, POSITIONS)


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5", " "])
def test_a_number_of_threads_that_is_not_positive_is_refused(path, number, threads):
    threads(number)
    with pytest.raises(RopeError, match="ROPE_XP_NUM_THREADS is .*integer of at least 1"):
        RoPE().rotate(np.ones((3, 64, 8), np.float32))


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LIMITS = [("", "", CORES), ("1", "", 1), ("5", "", 5), (" 3,2,1", "", 3), ("1", "4", 4)]
LIMITS += [("0", "", CORES), ("all", "", CORES)]


@pytest.mark.parametrize(("openmp", "ours", "expected"), LIMITS)
def test_openmp_limits_threads_unless_our_own_variable_is_set(openmp, ours, expected, monkeypatch):
    """As joblib and others set it for workers."""
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    monkeypatch.setenv("ROPE_XP_NUM_THREADS", ours)
    _threads.limit.cache_clear()
    assert _threads.limit() == expected
    _threads.limit.cache_clear()


def test_torch_limits_threads_for_tensors_whatever_openmp_says(monkeypatch):
    """Processes of torchrun have one thread, until torch is told otherwise."""
    torch = pytest.importorskip("torch")
    cpu = importlib.import_module("rope_xp_backends.torch.cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("ROPE_XP_NUM_THREADS", raising=False)
    _threads.limit.cache_clear()
    for number in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=number: n)
        assert cpu.limit_threads() == min(number, CORES)
    _threads.limit.cache_clear()
