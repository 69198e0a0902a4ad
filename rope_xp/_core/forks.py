"""What a fork waits for: locks, and imports of rope_xp.

A child has one thread, and what another held when it was forked stays locked for ever.
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
"""For imports and compilers. Who holds it may take QUICK; who holds QUICK takes no other."""


def _finish_imports() -> None:
    """Wait for modules of rope_xp that other threads import: each has a lock of Python's."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("rope_xp", "rope_xp_backends"):
            with contextlib.suppress(*BROKEN):  # whoever imports it is told
                importlib.import_module(name)


def _hold(lock: threading.RLock) -> None:
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


if hasattr(os, "register_at_fork"):
    # Before a fork the last comes first: who holds SLOW may import, and either may take QUICK.
    _hold(QUICK)
    os.register_at_fork(before=_finish_imports)
    _hold(SLOW)
