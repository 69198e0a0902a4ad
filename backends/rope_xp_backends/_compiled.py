"""numba's kernels: whether this process can have them, each compiled once, when first needed."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

from rope_xp._contract import Unavailable
from rope_xp._dispatch import BROKEN

Kernel = Callable[..., None]
Key = tuple[str, bool, bool]
"""Of a kernel: dtype, and whether pairs lie side by side where they are read and written."""

_kernels: dict[Key, Kernel] = {}
_objection: str | None = None
if importlib.util.find_spec("numba") is None:
    _objection = "numba is not installed (pip install 'rope-xp[numba]')"
_lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    # A child that is forked while numba compiles would wait for its locks for ever.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def objection() -> str | None:
    """Return why this process has no kernels, None if it can have them."""
    return _objection


def ready(key: Key) -> bool:
    """Return whether a kernel is compiled."""
    return key in _kernels


def kernel(key: Key) -> Kernel:
    """Return a kernel, compiled if it is not yet, or raise Unavailable."""
    return _kernels.get(key) or _compile(key)


def _compile(key: Key) -> Kernel:
    reason = objection()
    if reason is not None:
        raise Unavailable(reason)
    with _lock:
        if key not in _kernels:
            try:
                from .kernels import numba as kernels
            except BROKEN as error:
                _fail("imported", error)
            try:
                _kernels[key] = kernels.compiled(*key)
            except (*BROKEN, kernels.Error) as error:
                _fail("used", error)
        return _kernels[key]


def _fail(what: str, error: Exception) -> NoReturn:
    """Warn, once, and leave numba alone from here on."""
    global _objection
    _objection = f"numba cannot be {what}: {' '.join(str(error).split()) or type(error).__name__}"
    warnings.warn(f"rope_xp goes on without numba. {_objection}", RuntimeWarning, stacklevel=2)
    raise Unavailable(_objection) from error
