"""From an array to its backend.

- No framework is imported: an array of torch exists only if torch is in ``sys.modules`` already.
- A framework may be missing or broken without effect on others.
- A known type takes one dict lookup. ``array_namespace`` takes longer, entry points the longest.
- torch.compile traces this module, so it has no ``lru_cache``, no ``ContextVar``, and no write to a
  dict that Dynamo guards on.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rope_xp._core.errors import BROKEN
from rope_xp._core.forks import IMPORT_LOCK
from rope_xp._core.signals import defer_interrupts
from rope_xp._dispatch.backend import Backend

ENTRY_POINTS = "rope_xp.backends"
_log = logging.getLogger("rope_xp")


@dataclass(frozen=True)
class Library:
    """A library with a backend in ``rope_xp_backends``, and its fast paths, fastest first."""

    name: str
    """The name of its module."""
    arrays: tuple[tuple[str, Callable[[], Backend]], ...]
    """Its array classes, as dotted names in that module, and loaders of their backends."""
    extra: str
    """``pip install rope-xp[extra]`` installs it."""
    paths: tuple[str, ...]
    has_pytrees: bool = False
    """Whether its backend, when it is imported, registers the public classes as pytrees."""

    def load(self) -> Backend:
        """Return the backend of its plain arrays, the last of its classes."""
        return self.arrays[-1][1]()


libraries: tuple[Library, ...] = ()
"""Filled by :mod:`rope_xp._dispatch.libraries`, which names them."""
by_type: dict[type, Backend] = {}
"""Backends by array class."""
_standard: dict[str, Backend] = {}
_third_party: list[Backend] | None = None
_broken: list[str] = []  # why entry points gave no backend


def find_backend(x: object) -> Backend | None:
    """Return the backend of an array, None for anything else."""
    return by_type.get(type(x)) or _find_new(x)


def register_pytrees(array: object = None) -> None:
    """Register the public classes as pytrees of the libraries that are imported.

    Not while a compiler traces ``array``: it would guard on what is imported.
    """
    if array is not None:
        backend = by_type.get(type(array)) or _find_own(array)
        if backend is not None and backend.is_compiling():
            return
    for library in libraries:
        if library.has_pytrees and library.name in sys.modules:
            library.load()


def require_backend(x: object, argument: str) -> Backend:
    """Return the backend of an array, or raise."""
    if (backend := find_backend(x)) is None:
        msg = (
            f"{argument} is {_describe_type(x)}; expected an array of numpy, torch, jax, cupy or "
            "another library of the array API standard. Convert it, for example with numpy.asarray"
        )
        raise TypeError("; ".join((msg, *_broken)))
    return backend


def _find_new(x: object) -> Backend | None:
    backend = (
        _find_own(x)
        or next((b for b in third_party_backends() if b.recognises(x)), None)
        or _wrap_namespace(x)
    )
    if backend is None:
        return None
    if refusal := backend.refusal(x):
        raise TypeError(f"the array is {_describe_type(x)}: {refusal}")
    # Classes that are no attribute of a module may be garbage, which the cache would keep alive.
    cls = type(x)
    module = sys.modules.get(cls.__module__)
    if not backend.is_compiling() and get_attribute(module, cls.__qualname__) is cls:
        by_type[cls] = backend
    return backend


def get_attribute(owner: Any, dotted_name: str) -> Any:
    for name in dotted_name.split("."):
        owner = getattr(owner, name, None)
    return owner


def _describe_type(x: object) -> str:
    cls = type(x)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    return "None" if x is None else f"a {name}"


def _find_own(x: object) -> Backend | None:
    for library in libraries:
        module = sys.modules.get(library.name)
        for name, load in library.arrays:
            array_type = get_attribute(module, name)
            # isinstance, not issubclass: jax.Array recognises tracers by its metaclass.
            if array_type is not None and isinstance(x, array_type):
                return load()
    return None


def third_party_backends() -> list[Backend]:
    """Return the backends that other packages registered. Entry points are read once."""
    global _third_party
    if _third_party is not None:
        return _third_party
    with IMPORT_LOCK, defer_interrupts():  # an interrupt would be taken for an error of a plugin
        import importlib.metadata  # takes as long as rope_xp itself

        if _third_party is None:
            backends = []
            for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
                try:
                    backend = entry.load()
                    if isinstance(backend, Backend):
                        backends.append(backend)
                        continue
                    problem = f"is no Backend: {backend!r}"
                except BROKEN as error:
                    problem = f"cannot be imported: {error}"
                _broken.append(f"backend {entry.value!r} {problem}")
                _log.warning("%s", _broken[-1])
            _third_party = backends
        return _third_party


def _wrap_namespace(x: object) -> Backend | None:
    with IMPORT_LOCK:  # or a child forked meanwhile waits for ever
        import array_api_compat  # 2 to 7 ms, which most programs never need

    try:
        xp = array_api_compat.array_namespace(x)
    except TypeError:  # no array
        return None
    return _standard.setdefault(xp.__name__, Backend(xp.__name__, xp))


def require_backend_of_namespace(xp: Any) -> Backend:
    """Return the backend for a namespace such as ``torch`` or ``array_api_compat.torch``."""
    name = getattr(xp, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"xp must be an array API namespace such as numpy or torch; got {xp!r}")
    root = name.removeprefix("array_api_compat.").partition(".")[0]
    library = next((library for library in libraries if library.name == root), None)
    if library is not None:
        return library.load()
    return _standard.setdefault(name, Backend(name, xp))
