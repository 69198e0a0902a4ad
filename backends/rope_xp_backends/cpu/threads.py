"""Thread pool of a process, started when it is first needed, that shares rows of work out.

Why not numba's: with ``parallel=True`` its default layer aborts the process when two Python threads
call at once, and the OpenMP one does after a fork.
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
    """Return how many threads may work: ROPE_XP_NUM_THREADS, else the cores of this process.

    With ``openmp`` OMP_NUM_THREADS comes before cores: programs that start many workers set it.
    """
    wanted = os.environ.get("ROPE_XP_NUM_THREADS", "")
    if wanted:
        if not wanted.isdecimal() or int(wanted) < 1:
            msg = f"ROPE_XP_NUM_THREADS is {wanted!r}; give a whole number from 1, or unset it"
            raise RopeError(msg)
        return int(wanted)
    # A number for each level of nested loops. What is none of them is for others to complain of.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if openmp and first.isdecimal() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(work: Callable[[int, int], object], rows: int, threads: int) -> None:
    """Call work(start, stop) over all rows, in parts of equal length on as many threads.

    The calling thread does the last part itself. Returns once every part is done, and lets the
    first exception out.
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
        # Whatever happens here, nobody may write any more once the caller's arrays are gone.
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
                # One worker less than threads: whoever calls works too.
                workers = max(limit(), limit(openmp=False)) - 1
                _pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="rope_xp")
            pool = _pool
    try:
        # numpy.errstate is part of the context.
        return pool.submit(copy_context().run, work, start, stop)
    except RuntimeError:  # the interpreter is shutting down and takes no more work
        done: Future[object] = Future()
        done.set_result(work(start, stop))
        return done


def _forget() -> None:
    """Leave the pool to the parent process: its threads do not exist in a child.

    A worker may have a number of threads of its own besides.
    """
    global _pool
    _pool = None
    limit.cache_clear()  # type: ignore[attr-defined]  # kept is typed as the function that it keeps


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
