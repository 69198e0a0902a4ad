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
from support.programs import printed
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)
TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("number", ["1", "2", "3", "7", "1000"])
def test_any_number_of_threads_gives_the_same_bits(number, threads, rng):
    threads(number)
    for dtype in ("float32", "bfloat16"):
        q, k = (sample(rng, 2, 130, n, 16, dtype=dtype) for n in (4, 1))
        with rope_xp.use_path("native"):
            same(rope_xp.apply(q, k, POSITIONS), truth(rope_xp.apply, q, k, POSITIONS))


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


@pytest.mark.skipif(os.name != "posix", reason="this system sends no such signals")
@pytest.mark.usefixtures("native")
def test_handlers_that_raise_or_fork_run_when_no_part_does():
    options = ("-W", "error", "-W", "ignore::DeprecationWarning")  # of forks beside threads
    printed("interrupted_calls.py", options=options, ROPE_XP_NUM_THREADS="8")


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5", " "])
def test_a_number_of_threads_that_is_not_positive_is_refused(number, threads):
    threads(number)
    with pytest.raises(RopeError, match="ROPE_XP_NUM_THREADS is .*integer of at least 1"):
        RoPE().rotate(np.ones((3, 64, 8), np.float32))


CORES = 8
LIMITS = [("", "", CORES), ("1", "", 1), ("5", "", 5), (" 3,2,1", "", 3), ("1", "4", 4)]
LIMITS += [("0", "", CORES), ("all", "", CORES)]


@pytest.fixture
def cgroup(monkeypatch, tmp_path):
    """A process that may run on CORES, without variables, and a folder for its limits."""
    monkeypatch.delenv("ROPE_XP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CORES), raising=False)
    monkeypatch.setattr(_threads, "CGROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("openmp", "ours", "expected"), LIMITS)
@pytest.mark.usefixtures("cgroup")
def test_openmp_limits_threads_unless_our_own_variable_is_set(openmp, ours, expected, monkeypatch):
    """As joblib and others set it for workers."""
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    monkeypatch.setenv("ROPE_XP_NUM_THREADS", ours)
    assert _threads.limit() == expected


@pytest.mark.usefixtures("cgroup")
def test_torch_limits_threads_for_tensors_whatever_openmp_says(monkeypatch):
    """Processes of torchrun have one thread, until torch is told otherwise."""
    torch = pytest.importorskip("torch")
    cpu = importlib.import_module("rope_xp_backends.torch.cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for number in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=number: n)
        assert cpu.limit_threads() == number


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "900000 100000\n"}, CORES),
        ({"cpu.max": "max 100000\n"}, CORES),
        ({"cpu.max": "?"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CORES),
    ],
)
def test_a_container_has_threads_for_the_time_that_it_is_given(files, expected, cgroup):
    for name, text in files.items():
        (cgroup / name).parent.mkdir(exist_ok=True)
        (cgroup / name).write_text(text)
    assert _threads.limit() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no processes")
def test_cores_that_are_taken_from_a_process_later_count_no_more(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("ROPE_XP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    assert 1 <= _threads.limit() <= len(before)
    os.sched_setaffinity(0, [min(before)])
    try:
        assert _threads.limit() == 1
    finally:
        os.sched_setaffinity(0, before)
