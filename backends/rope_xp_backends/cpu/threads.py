"""A thread pool for kernels, started on first use.

numba's ``parallel=True`` would not do: its default layer aborts the process when two Python threads
call at once, and its OpenMP layer after a fork.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._core.forks import DICT_LOCK
from rope_xp._core.signals import defer_interrupts

SIGNALS = 16
"""So many handlers of signals may raise at once without ending a wait."""

_workers: list[Thread] = []
_requests: SimpleQueue[Callable[[], object]] = SimpleQueue()
"""What workers call, in turn."""


@cached(2)
def limit(*, openmp: bool = True) -> int:
    """Return the thread limit: ROPE_XP_NUM_THREADS, else OMP_NUM_THREADS, else the cores.

    Programs that start many workers set OMP_NUM_THREADS. Without ``openmp`` it is ignored.
    """
    setting = os.environ.get("ROPE_XP_NUM_THREADS", "")
    if setting:
        if not setting.isdecimal() or int(setting) < 1:
            msg = f"ROPE_XP_NUM_THREADS is {setting!r}; give an integer of at least 1, or unset it"
            raise RopeError(msg)
        return int(setting)
    # One number for each level of nested loops; OpenMP reports bad ones.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if openmp and first.isdecimal() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_parts(work: Callable[[int, int], object], rows: int, threads: int) -> None:
    """Call work(start, stop) over all rows, in equal parts on as many threads.

    Each part runs at most once. When this returns or raises, none runs any more and none will,
    whatever signal handlers raise meanwhile. After an exception parts may be left out.
    """
    threads = min(threads, rows)
    if threads <= 1:
        work(0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    job = _Job([partial(work, start, stop) for start, stop in pairwise(bounds)])
    job.run(SIGNALS)
    try:
        if job.errors:
            raise job.errors[0]
    finally:
        job.errors.clear()  # their tracebacks refer to the job, and to arrays


class _Job:
    """The parts of a call. Each is run by the thread that takes it from the list.

    The caller needs no worker: one that is late, or cannot start, finds no part left.
    """

    def __init__(self, parts: list[Callable[[], object]]) -> None:
        self.parts = parts
        self.active: list[None] = []
        """An item for each worker that may run a part."""
        self.left: SimpleQueue[None] = SimpleQueue()
        """An item for each worker that was active."""
        self.errors: list[BaseException] = []

    def run(self, levels: int) -> None:
        """Run parts, and wait until workers run none. After an exception the rest is dropped.

        A signal handler may raise at the start of a function, after each call and at the end of a
        loop, even where its exception is handled. The level above then goes on.
        """
        while self.parts or self.active:
            try:
                if levels:
                    self.run(levels - 1)
                elif self.parts:
                    _call_workers(self, len(self.parts) - 1)
                    self.take_parts()
                else:
                    self.left.get()
            except BaseException as error:  # noqa: BLE001  # raised when no part runs
                del self.parts[:]  # calls no function, after which a handler could raise
                self.errors[:0] = [error]

    def take_parts(self) -> None:
        """Run parts until none is left."""
        while self.parts:
            try:
                part = self.parts.pop()
            except IndexError:  # another thread took the last one
                return
            part()

    def assist(self) -> None:
        """Run parts in a worker."""
        self.active.append(None)
        try:
            self.take_parts()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.errors.append(error)
        finally:
            self.active.pop()
            self.left.put(None)


def _call_workers(job: _Job, number: int) -> None:
    if len(_workers) < number:
        _start_workers(number)
    for _ in _workers[:number]:
        # The context holds numpy.errstate.
        _requests.put(partial(copy_context().run, job.assist))


def _start_workers(number: int) -> None:
    """Start workers until there are so many, or until the system lets no more threads start."""
    # Else a handler's RuntimeError would be taken for that of a thread.
    with DICT_LOCK, defer_interrupts(), suppress(RuntimeError):
        while len(_workers) < number:
            name = f"rope_xp_{len(_workers)}"
            # A daemon: the interpreter does not wait for it at exit.
            worker = Thread(target=_serve, args=(_requests,), name=name, daemon=True)
            worker.start()
            _workers.append(worker)


def _serve(requests: SimpleQueue[Callable[[], object]]) -> None:
    while True:
        requests.get()()


def _drop_pool_after_fork() -> None:
    """Drop the pool in a forked child, which has none of its threads, and may set other limits."""
    global _requests
    _requests = SimpleQueue()
    _workers.clear()
    limit.cache_clear()  # type: ignore[attr-defined]  # cached keeps the type


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool_after_fork)
