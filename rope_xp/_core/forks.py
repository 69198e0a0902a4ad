"""Locks and imports that a fork waits for.

A child has one thread: a lock that another thread holds at the fork stays locked for ever.
"""

import contextlib
import importlib
import logging  # noqa: F401  # its fork handlers come before ours: a holder of SLOW may log
import os
import sys
import threading

from rope_xp._core.errors import BROKEN

QUICK = threading.RLock()
"""For a few steps on dicts."""
SLOW = threading.RLock()
"""For imports and compilers. A holder of SLOW may take QUICK, and not the reverse."""


def _finish_imports() -> None:
    """Wait for the import locks of modules of rope_xp that other threads import."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("rope_xp", "rope_xp_backends"):
            with contextlib.suppress(*BROKEN):  # the importing thread gets the error
                importlib.import_module(name)


def _hold_across_forks(lock: threading.RLock) -> None:
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


if hasattr(os, "register_at_fork"):
    # Before a fork they run in reverse order: SLOW, imports (which SLOW may cover), then QUICK.
    _hold_across_forks(QUICK)
    os.register_at_fork(before=_finish_imports)
    _hold_across_forks(SLOW)
