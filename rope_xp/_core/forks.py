"""Locks and imports that a fork waits for.

A child has one thread: a lock that another thread holds at the fork stays locked for ever.
"""

import contextlib
import importlib
import logging  # noqa: F401  # its fork handlers come before ours: a holder of IMPORT_LOCK may log
import os
import sys
import threading

from rope_xp._core.errors import BROKEN

DICT_LOCK = threading.RLock()
"""For a few steps on dicts."""
IMPORT_LOCK = threading.RLock()
"""For imports and compilers. A holder of IMPORT_LOCK may take DICT_LOCK, and not the reverse."""


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
    # Before a fork they run in reverse order: IMPORT_LOCK, imports (which it may cover), DICT_LOCK.
    _hold_across_forks(DICT_LOCK)
    os.register_at_fork(before=_finish_imports)
    _hold_across_forks(IMPORT_LOCK)
