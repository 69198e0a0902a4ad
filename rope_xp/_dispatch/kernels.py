"""Kernels that are compiled when they are first needed, and what becomes of those that fail."""

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Hashable
from typing import Generic, NoReturn, TypeVar

from rope_xp._contract.errors import BROKEN
from rope_xp._contract.path import Unavailable

Key = TypeVar("Key", bound=Hashable)
Kernel = TypeVar("Kernel")
Errors = tuple[type[Exception], ...]

MOST = 4096
"""Kernels that are kept, of each compiler."""


class Kernels(Generic[Key, Kernel]):
    """The kernels of one compiler. One that fails is given up alone, with one warning.

    Parameters
    ----------
    package : str
        What compiles them; without it there are none.
    load : callable
        Imports what makes kernels: returns ``compile(key)``, and what it raises where it cannot,
        beside what any import may raise.
    """

    def __init__(
        self, package: str, load: Callable[[], tuple[Callable[[Key], Kernel], Errors]]
    ) -> None:
        self._package = package
        self._load = load
        self._compile: Callable[[Key], Kernel] | None = None
        self._errors: Errors = BROKEN
        self._made: dict[Key, Kernel] = {}
        self._failed: dict[Key, str] = {}
        self._objection: str | None = None
        if importlib.util.find_spec(package) is None:
            self._objection = f"{package} is not installed (pip install 'rope-xp[{package}]')"
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A child that is forked while one is compiled would wait for locks for ever.
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._lock.release,
            )

    def objection(self, *keys: Key) -> str | None:
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
        with self._lock:
            if self._objection is not None:
                raise Unavailable(self._objection)
            if self._compile is None:
                try:
                    self._compile, errors = self._load()
                except BROKEN as error:
                    self._objection = f"{self._package} cannot be imported: {_words(error)}"
                    _give_up(f"without {self._package}", self._objection, error)
                self._errors = (*BROKEN, *errors)
            return self._compile

    def _new(self, key: Key, give_up: bool) -> Kernel:
        compiled = self.load()
        with self._lock:
            if key in self._made:
                return self._made[key]
            if key in self._failed:
                raise Unavailable(self._failed[key])
            try:
                made = compiled(key)
            except self._errors as error:
                if not give_up:
                    raise
                reason = f"{self._package} cannot compile its kernel: {_words(error)}"
                self._failed[key] = reason
                _give_up(f"without a kernel of {self._package}", reason, error)
            while len(self._made) >= MOST:
                del self._made[next(iter(self._made))]
            self._made[key] = made
            return made


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _give_up(without: str, reason: str, error: Exception) -> NoReturn:
    warnings.warn(f"rope_xp goes on {without}. {reason}", RuntimeWarning, stacklevel=2)
    raise Unavailable(reason) from error
