"""Kernels that are compiled when they are first needed, and what becomes of those that fail."""

import importlib.util
import signal
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, TypeVar

from rope_xp._core.forks import SLOW
from rope_xp._core.path import PathUnavailable

Key = TypeVar("Key", bound=Hashable)
Kernel = TypeVar("Kernel")
MOST = 4096
"""Kernels that are kept, of each compiler."""


class Kernels(Generic[Key, Kernel]):
    """The kernels of one compiler. One that fails is given up alone, with one warning.

    Where memory is short none is given up: the next call tries again.

    Parameters
    ----------
    package : str
        What compiles them; without it there are none.
    load : callable
        Imports what makes kernels: returns ``compile(key)``.
    """

    def __init__(self, package: str, load: Callable[[], Callable[[Key], Kernel]]) -> None:
        self._package = package
        self._load = load
        self._compile: Callable[[Key], Kernel] | None = None
        self._made: dict[Key, Kernel] = {}
        self._failed: dict[Key, str] = {}
        self._objection: str | None = None
        if importlib.util.find_spec(package) is None:
            self._objection = f"{package} is not installed (pip install 'rope-xp[{package}]')"

    def decline_reason(self, *keys: Key) -> str | None:
        """Return why this process has none of these kernels, None if it can have all of them."""
        if self._objection is None and self._failed:
            return next((self._failed[key] for key in keys if key in self._failed), None)
        return self._objection

    def ready(self, key: Key) -> bool:
        """Return whether a kernel is compiled."""
        return key in self._made

    def get(self, key: Key, *, give_up: bool = True) -> Kernel:
        """Return a kernel, compiled if it is not yet, or raise Unavailable.

        Without ``give_up`` the compiler's own error is raised, and another try may go better.
        """
        made = self._made.get(key)
        return self._new(key, give_up) if made is None else made

    def load(self) -> Callable[[Key], Kernel]:
        """Return what makes kernels, imported if it is not yet, or raise Unavailable."""
        with SLOW:
            if self._objection is not None:
                raise PathUnavailable(self._objection)
            if self._compile is None:
                try:
                    with _interrupts_held():
                        self._compile = self._load()
                # A compiler that is broken raises anything, and there is a path without it.
                except Exception as error:  # noqa: BLE001  # see above
                    reason = f"{self._package} cannot be imported: {_words(error)}"
                    if not _passes(error):
                        self._objection = reason
                    _give_up(f"without {self._package}", reason, error)
            return self._compile

    def _new(self, key: Key, give_up: bool) -> Kernel:
        compiled = self.load()
        with SLOW:
            if key in self._made:
                return self._made[key]
            if key in self._failed:
                raise PathUnavailable(self._failed[key])
            try:
                with _interrupts_held():
                    made = _once_more(compiled, key)
            except Exception as error:  # as in load
                if not give_up:
                    raise
                reason = f"{self._package} cannot compile its kernel: {_words(error)}"
                if not _passes(error):
                    self._failed[key] = reason
                _give_up(f"without a kernel of {self._package}", reason, error)
            while len(self._made) >= MOST:
                del self._made[next(iter(self._made))]
            self._made[key] = made
            return made


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until all is imported or compiled.

    C code of a compiler could make another error of it, or print it and go on. Only the main thread
    is interrupted, and a handler that was not set by Python cannot be put back.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def _once_more(compiled: Callable[[Key], Kernel], key: Key) -> Kernel:
    """Return a kernel, on a second try where files fail: another process may be writing them."""
    try:
        return compiled(key)
    except OSError:
        return compiled(key)


def _passes(error: Exception) -> bool:
    """Return whether memory is short, of the host or of a device, as it may not be a moment later.

    Each compiler has an error of its own for what the driver calls so.
    """
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _give_up(without: str, reason: str, error: Exception) -> NoReturn:
    warnings.warn(f"rope_xp goes on {without}. {reason}", RuntimeWarning, stacklevel=2)
    raise PathUnavailable(reason) from error
