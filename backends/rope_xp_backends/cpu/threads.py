"""How many threads a call on CPU memory may run."""

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

from rope_xp._core.errors import RopeError

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux has the share of a container in the time of its cores."""


def limit(*, openmp: bool = True) -> int:
    """Return the thread limit: ROPE_XP_NUM_THREADS, else OMP_NUM_THREADS, else the cores.

    Programs that start many workers set OMP_NUM_THREADS; without ``openmp`` it is ignored. Cores
    are those that the process may run on, and of which a container has a share of the time. All
    may change at any time, so nothing is cached: a call that asks takes a millisecond or more.
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
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, read_quota() or cores))


def read_quota() -> int | None:
    """Return how many cores the quota of a Linux container is worth, None without one."""
    with suppress(OSError, ValueError):  # "max" is no number
        quota, period = map(int, QUOTA.read_text().split())
        return ceil(quota / period)
    return None
