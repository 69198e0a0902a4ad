"""From a call to the path that runs it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rope_xp._core.call import Call
from rope_xp._core.errors import MissingBackendError, RopeError
from rope_xp._core.path import Path, PathUnavailable, ShardedExecutor
from rope_xp._core.typing import Array
from rope_xp._dispatch import find, heads
from rope_xp._rotation import norm, portable, slots

VARIABLE = "ROPE_XP_PATH"


class _Choice(threading.local):
    """The forced path of this thread. A ContextVar would stop torch.compile."""

    name: str | None = os.environ.get(VARIABLE) or None
    by: str = f" by the environment variable {VARIABLE}"


choice = _Choice()


@contextmanager
def use_path(name: str | None) -> Iterator[None]:
    """Run every call in this thread on the named path, or raise if the path cannot run it.

    The choice holds for the thread, and so for all its asyncio tasks: do not await inside. The
    environment variable ``ROPE_XP_PATH``, read at import, sets it for the process; libraries
    without a path of that name ignore it.

    Parameters
    ----------
    name : str or None
        A name listed by :func:`explain` or ``rope-xp info``, such as "portable" (in every library)
        or "jit" (jax). None: choose automatically.

    Raises
    ------
    RopeError, MissingBackendError
        If no path has this name, or its library is not installed; in a call, if the path declines.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> with rope_xp.use_path("portable"):
    ...     y = rope_xp.RoPE().rotate(np.ones((3, 2, 8)))
    """
    if name is not None:
        _check_name(name)
    before = choice.name, choice.by
    choice.name, choice.by = name, ""
    try:
        yield
    finally:
        choice.name, choice.by = before


def _check_name(name: str, by: str = "") -> None:
    import importlib.util

    if name == portable.NAME:
        return
    owners = [library for library in find.libraries if name in library.paths]
    if owners:
        if all(importlib.util.find_spec(library.name) is None for library in owners):
            msg = (
                f"the path {name!r}{by} belongs to {owners[0].name}, which is not installed; "
                f"pip install 'rope-xp[{owners[0].extra}]'"
            )
            raise MissingBackendError(msg, name=owners[0].name)
        return
    others = [path.name for backend in find.third_party_backends() for path in backend.paths]
    if name not in others:
        paths = (path for library in find.libraries for path in library.paths)
        known = dict.fromkeys((portable.NAME, *paths, *others))  # two libraries may share a name
        raise RopeError(f"there is no path {name!r}{by}; known are {', '.join(known)}")


def run(call: Call) -> tuple[Array, ...]:
    """Run a call on the forced path, or on the fastest path that does not decline."""
    return run_on_path(call)[1]


def run_on_path(call: Call) -> tuple[Path | None, tuple[Array, ...]]:
    """Run a call, and return its path (None for the portable one) and the results."""
    path: Path | None
    if call.slots is not None and not _writes_keys(call):
        path, results = run_on_path(slots.without_slots(call))
        return path, slots.write_keys(call, results)
    if heads.differ_by_head(call):
        path, results = run_on_path(heads.split_heads(call))
        return path, heads.merge_heads(call, results)
    sharded_executor: ShardedExecutor | None = call.backend.sharded_executor
    if sharded_executor is not None:
        return None, sharded_executor.run(call, run)
    if not call.backend.takes_calls_whole:
        call = norm.round_between(call)
    name = _get_forced(call)
    if name is not None and name != portable.NAME:
        path = _require_path(call, name)
        try:
            return path, path.run(call)
        except PathUnavailable as reason:
            raise _decline_error(name, reason) from reason
    for path in call.backend.paths if name is None else ():
        if _decline_reason(path, call, forced=False) is None:
            try:
                return path, path.run(call)
            except PathUnavailable:
                continue
    if not call.backend.runs_portable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in explain(call).declined)
        raise RopeError(f"no path of {call.backend.name} takes this call ({reasons})")
    return None, portable.run(call)


def _writes_keys(call: Call) -> bool:
    """Return whether a path writes keys to their slots itself."""
    return not heads.differ_by_head(call) and any(
        path.takes_slots
        and choice.name in (None, path.name)
        and _decline_reason(path, call, forced=choice.name is not None) is None
        for path in call.backend.paths
    )


def _decline_reason(path: Path, call: Call, *, forced: bool) -> str | None:
    if call.spec.norm is not None and not path.normalizes:
        return "it does not normalize"
    if call.slots is not None and not path.takes_slots:
        return "it writes to no slots"
    return path.decline_reason(call, forced=forced)


def _get_forced(call: Call) -> str | None:
    """Return the name of the forced path. The environment forces no library that lacks it."""
    name = choice.name
    if name is None or not choice.by or name == portable.NAME:
        return name
    if name in [path.name for path in call.backend.paths]:
        return name
    _check_name(name, f", set{choice.by}")
    return None


def raise_if_forced(reason: PathUnavailable) -> None:
    """Raise where another path than the portable one is forced."""
    if choice.name not in (None, portable.NAME):
        raise _decline_error(choice.name, reason) from reason


def _require_path(call: Call, name: str) -> Path:
    path: Path
    for path in call.backend.paths:
        if path.name == name:
            reason = _decline_reason(path, call, forced=True)
            if reason is None:
                return path
            raise _decline_error(name, reason)
    _check_name(name)
    known = ", ".join([*(path.name for path in call.backend.paths), portable.NAME])
    msg = f"the path {name!r} was forced, but {call.backend.name} arrays have only"
    raise RopeError(f"{msg}: {known}")


def _decline_error(name: str, cause: object) -> RopeError:
    return RopeError(f"the path {name!r} was forced{choice.by}, but cannot take this call: {cause}")


@dataclass(frozen=True)
class Explanation:
    """The path of a call, and why each faster one declined.

    Parameters
    ----------
    library, path : str
        The array library, and the path that runs.
    declined : tuple of (str, str)
        Name and reason of each faster path that declined, fastest first.
    forced : bool
        Whether the path was forced by name.
    """

    library: str
    path: str
    declined: tuple[tuple[str, str], ...]
    forced: bool

    def __str__(self) -> str:
        first = f"{self.library}: {self.path}{' (forced)' if self.forced else ''}"
        return "\n".join([first, *(f"  not {name}: {reason}" for name, reason in self.declined)])


def explain(call: Call) -> Explanation:
    """Return which path would run a call."""
    backend, name = call.backend, _get_forced(call)
    if backend.sharded_executor is not None:
        return replace(explain(backend.sharded_executor.local_call(call)), library=backend.name)
    if call.spec.norm is not None and call.spec.norm.round_between:
        call = replace(call, spec=call.spec._replace(norm=None), weights=())
    if name is not None:
        if name != portable.NAME:
            _require_path(call, name)
        return Explanation(backend.name, name, (), forced=True)
    declined: list[tuple[str, str]] = []
    for path in backend.paths:
        reason = _decline_reason(path, call, forced=False)
        if reason is None:
            return Explanation(backend.name, path.name, tuple(declined), forced=False)
        declined.append((path.name, reason))
    return Explanation(backend.name, portable.NAME, tuple(declined), forced=False)
