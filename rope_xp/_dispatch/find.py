"""From an array to its backend.

Requirements, which explain the shape of this file:

- No framework is imported to recognise its arrays. An array of torch can only exist if torch is
  in ``sys.modules`` already.
- A framework may be absent, or installed and broken. Neither may disturb the others.
- The common case is one dict lookup on ``type(x)``, 30 ns. ``array_namespace`` takes 1 us, reading
  entry points 2.5 ms; both are for types never seen before.
- torch.compile traces through all of this without a warning: no ``lru_cache``, no ``ContextVar``,
  no write to a dict that it would guard on.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rope_xp._core.errors import BROKEN
from rope_xp._core.forks import SLOW
from rope_xp._dispatch.backend import Backend

ENTRY_POINTS = "rope_xp.backends"
_log = logging.getLogger("rope_xp")


@dataclass(frozen=True)
class Library:
    """One row of the table of libraries with a backend of their own."""

    name: str
    """Of its module, which is in sys.modules if one of its arrays exists."""
    arrays: tuple[tuple[str, Callable[[], Backend]], ...]
    """Its array classes in that module, with a dot where they are in one of its modules, and what
    imports their backend. Spelled as an import statement, which torch.compile can trace."""
    extra: str
    """What to install: ``pip install rope-xp[extra]``."""
    paths: tuple[str, ...]
    """Names of the fast paths, fastest first."""

    def load(self) -> Backend:
        """Return the backend of its plain arrays, the last of its classes."""
        return self.arrays[-1][1]()


libraries: tuple[Library, ...] = ()
"""Filled by :mod:`rope_xp._dispatch.libraries`, which names them."""
by_type: dict[type, Backend] = {}
"""Backends by classes of arrays that were seen before."""
_standard: dict[str, Backend] = {}
_third_party: list[Backend] | None = None


def register(table: tuple[Library, ...]) -> None:
    """Have the arrays of these libraries recognised."""
    global libraries
    libraries = table


def find_backend(x: object) -> Backend | None:
    """Return the backend of an array, None for anything else."""
    return by_type.get(type(x)) or _find_new(x)


def require_backend(x: object, argument: str) -> Backend:
    """Return the backend of an array, or raise."""
    backend = by_type.get(type(x)) or _find_new(x)
    if backend is None:
        msg = (
            f"{argument} is {_kind(x)}, which is no array of numpy, torch, jax, cupy or another "
            "library of the Python array API standard; convert it, for example by numpy.asarray"
        )
        raise TypeError(msg)
    return backend


def _find_new(x: object) -> Backend | None:
    backend = _own(x) or _from_entry_points(x) or _from_namespace(x)
    if backend is None:
        return None
    refusal = backend.refusal(x)
    if refusal is not None:
        msg = f"the array is {_kind(x)}: {refusal}"
        raise TypeError(msg)
    # A class that its module does not hold may go, and what remembers it would not let it.
    cls = type(x)
    if not backend.is_compiling() and _in_its_module(cls):
        by_type[cls] = backend
    return backend


def _in_its_module(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls


def _kind(x: object) -> str:
    cls = type(x)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    return f"a {name}"


def _own(x: object) -> Backend | None:
    for library in libraries:
        module = sys.modules.get(library.name)
        for name, load in library.arrays:
            array: Any = module
            for part in name.split("."):
                array = getattr(array, part, None)
            # isinstance, not issubclass: jax.Array answers for tracers by its metaclass.
            if array is not None and isinstance(x, array):
                return load()
    return None


def _from_entry_points(x: object) -> Backend | None:
    return next((b for b in third_party() if b.recognises(x)), None)


def third_party() -> list[Backend]:
    """Return the backends that other packages registered. Entry points are read once."""
    global _third_party
    with SLOW:
        import importlib.metadata  # as long to import as all the rest of rope_xp

        if _third_party is None:
            found = []
            for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
                try:
                    backend = entry.load()
                except BROKEN as error:
                    _log.warning("backend %r cannot be imported: %s", entry.value, error)
                    continue
                if isinstance(backend, Backend):
                    found.append(backend)
                else:
                    _log.warning("backend %r is no Backend: %r", entry.value, backend)
            _third_party = found
        return _third_party


def _from_namespace(x: object) -> Backend | None:
    with SLOW:  # or a child that is forked meanwhile waits for ever
        import array_api_compat  # which takes 2 to 7 ms, and most programs have no such array

    try:
        xp = array_api_compat.array_namespace(x)
    except TypeError:  # no array of the standard
        return None
    name = xp.__name__
    return _standard.setdefault(name, Backend(name, xp))


def require_backend_of_namespace(xp: Any) -> Backend:
    """Return the backend for a namespace such as ``torch`` or ``array_api_compat.torch``."""
    name = getattr(xp, "__name__", None)
    if not isinstance(name, str):
        msg = f"xp must be an array API namespace such as numpy or torch; got {xp!r}"
        raise TypeError(msg)
    root = name.removeprefix("array_api_compat.").partition(".")[0]
    for library in libraries:
        if library.name == root:
            return library.load()
    return _standard.get(name) or _standard.setdefault(name, Backend(name, xp))
