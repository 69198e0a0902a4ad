"""From an array to its backend, and from a call to the path that runs it.

Requirements, which explain the shape of this file:

- No framework is imported to recognise its arrays. An array of torch can only exist if torch is
  in ``sys.modules`` already.
- A framework may be absent, or installed and broken. Neither may disturb the others.
- The common case is one dict lookup on ``type(x)``, 30 ns. ``array_namespace`` takes 1 us, reading
  entry points 2.5 ms; both are for types never seen before.
- torch.compile traces through all of this without a warning: no ``lru_cache``, no ``ContextVar``,
  no write to a dict that it would guard on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rope_xp import _compat, _portable, _validate
from rope_xp._contract import Backend, Call, Path, Unavailable
from rope_xp._errors import MissingBackendError, RopeError
from rope_xp._typing import Array

ENTRY_POINTS = "rope_xp.backends"
_log = logging.getLogger("rope_xp")


def _numpy() -> Backend:
    from rope_xp_backends import numpy as glue

    return glue.BACKEND


def _torch() -> Backend:
    from rope_xp_backends import torch as glue

    return glue.BACKEND


def _jax() -> Backend:
    from rope_xp_backends import jax as glue

    return glue.BACKEND


def _cupy() -> Backend:
    from rope_xp_backends import cupy as glue

    return glue.BACKEND


def _ndonnx() -> Backend:
    from rope_xp_backends import ndonnx as glue

    return glue.BACKEND


def _dask() -> Backend:
    from rope_xp_backends import dask as glue

    return glue.BACKEND


@dataclass(frozen=True)
class Library:
    """One row of the table of libraries with a backend of their own."""

    name: str
    """Of its module, which is in sys.modules if one of its arrays exists."""
    array: tuple[str, ...]
    """Of its array classes in that module, with a dot where they are in one of its modules."""
    load: Callable[[], Backend]
    """Imports the backend. Spelled as an import statement, which torch.compile can trace."""
    extra: str
    """What to install: ``pip install rope-xp[extra]``."""
    paths: tuple[str, ...]
    """Names of the fast paths, fastest first."""


LIBRARIES = (
    Library("numpy", ("ndarray", "generic"), _numpy, "", ("numba", "chunked", "complex")),
    Library("torch", ("Tensor",), _torch, "torch", ("triton", "numba")),
    Library("jax", ("Array",), _jax, "jax", ("jit-gpu", "jit")),
    Library("cupy", ("ndarray",), _cupy, "cupy-cuda13x", ("cuda",)),
    Library("ndonnx", ("Array",), _ndonnx, "ndonnx", ()),
    Library("dask", ("array.Array",), _dask, "dask", ("blockwise",)),
)

_by_type: dict[type, Backend] = {}
_standard: dict[str, Backend] = {}
_third_party: list[Backend] | None = None
_lock = threading.RLock()
BROKEN = (ImportError, AttributeError, OSError, RuntimeError, SyntaxError, TypeError, ValueError)
"""What importing somebody's package may raise; nobody asked for it by name, so the others go on."""


def find(x: object) -> Backend | None:
    """Return the backend of an array, None for anything else."""
    return _by_type.get(type(x)) or _find_new(x)


def backend_of(x: object, argument: str) -> Backend:
    """Return the backend of an array, or raise."""
    backend = _by_type.get(type(x)) or _find_new(x)
    if backend is None:
        raise _validate.no_array(argument, x)
    return backend


def _find_new(x: object) -> Backend | None:
    backend = _own(x) or _from_entry_points(x) or _from_namespace(x)
    if backend is None:
        return None
    backend = backend.variant(x)
    refusal = backend.refusal(x)
    if refusal is not None:
        raise _validate.refused("the array", x, refusal)
    if not backend.is_compiling():
        _by_type[type(x)] = backend
    return backend


def _own(x: object) -> Backend | None:
    for library in LIBRARIES:
        module = sys.modules.get(library.name)
        for name in library.array:
            array: Any = module
            for part in name.split("."):
                array = getattr(array, part, None)
            # isinstance, not issubclass: jax.Array answers for tracers by its metaclass.
            if array is not None and isinstance(x, array):
                return library.load()
    return None


def _from_entry_points(x: object) -> Backend | None:
    return next((b for b in third_party() if b.recognises(x)), None)


def third_party() -> list[Backend]:
    """Return the backends that other packages registered. Entry points are read once."""
    import importlib.metadata  # as long to import as all the rest of rope_xp

    global _third_party
    with _lock:
        if _third_party is None:
            _third_party = []
            for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
                try:
                    backend = entry.load()
                except BROKEN as error:
                    _log.warning("backend %r cannot be imported: %s", entry.value, error)
                    continue
                if isinstance(backend, Backend):
                    _third_party.append(backend)
                else:
                    _log.warning("backend %r is no Backend: %r", entry.value, backend)
        return _third_party


def _from_namespace(x: object) -> Backend | None:
    xp = _compat.namespace_of(x)
    if xp is None:
        return None
    name = xp.__name__
    return _standard.setdefault(name, Backend(name, xp))


def backend_of_namespace(xp: Any) -> Backend:
    """Return the backend for a namespace such as ``torch`` or ``array_api_compat.torch``."""
    name = getattr(xp, "__name__", None)
    if not isinstance(name, str):
        msg = f"xp must be an array API namespace such as numpy or torch; got {xp!r}"
        raise TypeError(msg)
    root = name.removeprefix("array_api_compat.").partition(".")[0]
    for library in LIBRARIES:
        if library.name == root:
            return library.load()
    return _standard.get(name) or _standard.setdefault(name, Backend(name, xp))


# --- the choice of a path ------------------------------------------------------------------------


class _Choice(threading.local):
    """The path asked for by name in this thread. A ContextVar stops torch.compile."""

    name: str | None = os.environ.get("ROPE_XP_BACKEND") or None


_choice = _Choice()


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Run every call in this thread on the path of this name, or raise where it cannot.

    The choice belongs to the thread, and so to all its asyncio tasks: await nothing inside.

    The environment variable ``ROPE_XP_BACKEND``, read at import, sets the choice for a process.

    Parameters
    ----------
    name : str or None
        A name that :func:`explain` or ``python -m rope_xp info`` lists, such as "portable" (every
        library has it) or "jit" (jax). None: choose automatically.

    Raises
    ------
    RopeError
        If no path has this name; in a call, if the path cannot take it.
    MissingBackendError
        If the library that the path belongs to is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> with rope_xp.use_backend("portable"):
    ...     y = rope_xp.RoPE().rotate(np.ones((3, 2, 8)))
    """
    if name is not None:
        _check_name(name)
    before = _choice.name
    _choice.name = name
    try:
        yield
    finally:
        _choice.name = before


def _check_name(name: str) -> None:
    import importlib.util

    if name == _portable.NAME:
        return
    owners = [library for library in LIBRARIES if name in library.paths]
    if owners:
        if all(importlib.util.find_spec(library.name) is None for library in owners):
            msg = (
                f"the path {name!r} belongs to {owners[0].name}, which is not installed; "
                f"pip install 'rope-xp[{owners[0].extra}]'"
            )
            raise MissingBackendError(msg, name=owners[0].name)
        return
    others = [path.name for backend in third_party() for path in backend.paths]
    if name not in others:
        own = (path for library in LIBRARIES for path in library.paths)
        known = dict.fromkeys((_portable.NAME, *own, *others))  # two libraries may share a name
        msg = f"no path is called {name!r}; there are {', '.join(known)}"
        raise RopeError(msg)


def run(call: Call) -> tuple[Array, ...]:
    """Run a call on the path asked for, or on the fastest that takes it."""
    backend, name = call.backend, _choice.name
    if backend.spread:
        return backend.run_spread(call, run)
    if name is None:
        for path in backend.paths:
            if path.declines(call) is None and path.defers(call) is None:
                try:
                    return path.run(call)
                except Unavailable:
                    continue
        return _portable.run(call)
    if name == _portable.NAME:
        return _portable.run(call)
    path = _named(call, name)
    try:
        return path.run(call)
    except Unavailable as reason:
        raise _cannot(name, str(reason)) from reason


def _named(call: Call, name: str) -> Path:
    backend = call.backend
    for path in backend.paths:
        if path.name == name:
            reason = path.declines(call)
            if reason is None:
                return path
            raise _cannot(name, reason)
    have = ", ".join([*(path.name for path in backend.paths), _portable.NAME])
    msg = (
        f"the path {name!r} was asked for and {backend.name} arrays have none of that name: {have}"
    )
    raise RopeError(msg)


def _cannot(name: str, reason: str) -> RopeError:
    return RopeError(f"the path {name!r} was asked for and cannot take this call: {reason}")


@dataclass(frozen=True)
class Explanation:
    """Which path runs a call, and why each faster one does not.

    Parameters
    ----------
    library : str
        The array library.
    path : str
        The path that runs.
    declined : tuple of (str, str)
        Name and reason of each faster path that declined, fastest first.
    forced : bool
        Whether the path was asked for by name.
    """

    library: str
    path: str
    declined: tuple[tuple[str, str], ...]
    forced: bool

    def __str__(self) -> str:
        how = " (asked for)" if self.forced else ""
        lines = [f"{self.library}: {self.path}{how}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.declined]
        return "\n".join(lines)


def explain(call: Call) -> Explanation:
    """Return which path would run a call."""
    backend, name = call.backend, _choice.name
    if backend.spread:
        return replace(explain(backend.here(call)), library=backend.name)
    if name is not None:
        path = name if name == _portable.NAME else _named(call, name).name
        return Explanation(backend.name, path, (), True)
    declined: list[tuple[str, str]] = []
    for candidate in backend.paths:
        reason = candidate.declines(call) or candidate.defers(call)
        if reason is None:
            return Explanation(backend.name, candidate.name, tuple(declined), False)
        declined.append((candidate.name, reason))
    return Explanation(backend.name, _portable.NAME, tuple(declined), False)
