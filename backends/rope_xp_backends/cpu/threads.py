"""A thread pool for kernels, started on first use.

numba's ``parallel=True`` would not do: its default layer aborts the process when two Python threads
call at once, and its OpenMP layer after a fork.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._core.forks import QUICK

_pool: ThreadPoolExecutor | None = None


@cached(2)
def limit(*, openmp: bool = True) -> int:
    """Return the thread limit: ROPE_XP_NUM_THREADS, else OMP_NUM_THREADS, else the cores.

    Programs that start many workers set OMP_NUM_THREADS. Without ``openmp`` it is ignored.
    """
    setting = os.environ.get("ROPE_XP_NUM_THREADS", "")
    if setting:
        if not setting.isdecimal() or int(setting) < 1:
            msg = f"ROPE_XP_NUM_THREADS is {setting!r}; give a whole number from 1, or unset it"
            raise RopeError(msg)
        return int(setting)
    # One number for each level of nested loops; OpenMP reports bad ones.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if openmp and first.isdecimal() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(work: Callable[[int, int], object], rows: int, threads: int) -> None:
    """Call work(start, stop) over all rows, in equal parts on as many threads.

    The calling thread does the last part. Waits for all parts, then raises the first exception.
    """
    threads = min(threads, rows)
    if threads <= 1:
        work(0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    futures: list[Future[object]] = []
    try:
        for start, stop in pairwise(bounds[:-1]):
            futures.append(_submit(work, start, stop))
        work(bounds[-2], bounds[-1])
    finally:
        # No thread may write after the caller's arrays are gone.
        for future in futures:
            future.exception()
    for future in futures:
        future.result()


def _submit(work: Callable[[int, int], object], start: int, stop: int) -> Future[object]:
    global _pool
    pool = _pool
    if pool is None:
        with QUICK:
            if _pool is None:
                workers = max(limit(), limit(openmp=False)) - 1  # besides the calling thread
                _pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="rope_xp")
            pool = _pool
    try:
        # The context holds numpy.errstate.
        return pool.submit(copy_context().run, work, start, stop)
    except RuntimeError:  # the interpreter is shutting down
        done: Future[object] = Future()
        done.set_result(work(start, stop))
        return done


def _forget() -> None:
    """Drop the pool in a forked child, which has none of its threads, and may set other limits."""
    global _pool
    _pool = None
    limit.cache_clear()  # type: ignore[attr-defined]  # cached keeps the type


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
