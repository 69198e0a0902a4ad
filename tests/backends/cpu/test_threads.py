"""Kernels on numpy's arrays: threads of rope_xp and of its callers."""

import importlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rope_xp_backends.cpu import threads as _threads
from support.bits import same, sample
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)
TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("number", ["1", "2", "7", "1000"])
def test_any_number_of_threads_gives_the_same_bits(number, threads, rng):
    threads(number)
    for dtype in ("float32", "bfloat16"):
        q, k = (sample(rng, 2, 130, n, 16, dtype=dtype) for n in (4, 1))
        with rope_xp.use_path("native"):
            same(rope_xp.apply(q, k, POSITIONS), truth(rope_xp.apply, q, k, POSITIONS))


@pytest.mark.parametrize("path", ["native", "chunked"])
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


@pytest.mark.skipif(not TASKS.is_dir(), reason="this system does not list threads in /proc")
def test_no_thread_outlives_a_call(threads):
    threads("7")
    before = len([*TASKS.iterdir()])
    for _ in range(20):
        RoPE().rotate(np.ones((2, 130, 4, 16), np.float32))
    end = time.monotonic() + 5  # the system lists a thread a little longer than it runs
    while len([*TASKS.iterdir()]) > before:
        assert time.monotonic() < end


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5", " "])
def test_rope_xp_num_threads_that_is_no_positive_integer_is_refused(number, threads):
    threads(number)
    with pytest.raises(RopeError, match="ROPE_XP_NUM_THREADS is .*integer of at least 1"):
        RoPE().rotate(np.ones((3, 64, 8), np.float32))


# OMP_NUM_THREADS, which joblib sets for workers; ROPE_XP_NUM_THREADS; the quota of a container.
LIMITS = [
    *(("", "", None, 8), ("0", "", None, 8), ("all", "", None, 8), (" 3,2,1", "", None, 3)),
    *(("1", "", None, 1), ("1", "4", None, 4), ("5", "", "20000 100000", 5)),
    *(("", "", f"{quota} 100000\n", n) for quota, n in ((150_000, 2), (20_000, 1))),
    *(("", "", text, 8) for text in ("900000 100000", "max 100000", "?")),
]


@pytest.fixture
def set_limits(monkeypatch, tmp_path):
    """Limit the threads of a process that may run on so many cores."""

    def set_all(openmp="", ours="", quota=None, cores=8):
        monkeypatch.setenv("OMP_NUM_THREADS", openmp)
        monkeypatch.setenv("ROPE_XP_NUM_THREADS", ours)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        monkeypatch.setattr(_threads, "QUOTA", tmp_path / "cpu.max")
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota)

    return set_all


@pytest.mark.parametrize(("openmp", "ours", "quota", "expected"), LIMITS)
def test_threads_are_limited_by_our_variable_openmp_and_the_quota(
    openmp, ours, quota, expected, set_limits
):
    set_limits(openmp, ours, quota)
    assert _threads.limit() == expected


def test_threads_are_limited_to_the_cores_that_a_process_has_now(set_limits):
    for cores in (8, 1):
        set_limits(cores=cores)
        assert _threads.limit() == cores


@pytest.mark.parametrize("number", [1, 2])
def test_threads_for_tensors_are_limited_by_torch_whatever_openmp_says(
    number, set_limits, monkeypatch
):
    """Processes of torchrun have one thread, until torch is told otherwise."""
    torch = pytest.importorskip("torch")
    entry = importlib.import_module("rope_xp_backends.torch.entry")
    set_limits(openmp="1")
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    assert entry.limit_threads() == number
