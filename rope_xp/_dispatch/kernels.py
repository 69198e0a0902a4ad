"""Kernels that are compiled on first use. One that fails warns once, and is not tried again."""

import importlib.util
import warnings
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from rope_xp._core.call import Call
from rope_xp._core.forks import IMPORT_LOCK
from rope_xp._core.memory import have_overlap
from rope_xp._core.path import PathUnavailable
from rope_xp._core.signals import defer_interrupts

Key = TypeVar("Key", bound=Hashable)
Kernel = TypeVar("Kernel")
Result = TypeVar("Result")
MAX_KERNELS = 4096
"""The limit of a compiler's kernels."""


class Kernels(Generic[Key, Kernel]):
    """The kernels of one compiler. After an out-of-memory error later calls try again.

    ``load`` imports the compiler, of ``package``, and returns ``compile(key)``.
    """

    def __init__(self, package: str, load: Callable[[], Callable[[Key], Kernel]]) -> None:
        self._package = package
        self._load = load
        self._compile: Callable[[Key], Kernel] | None = None
        self._compiled: dict[Key, Kernel] = {}
        self._failed: dict[Key | None, str] = {}
        """Reasons, of the import where the key is None."""
        if importlib.util.find_spec(package) is None:
            self._failed[None] = f"{package} is not installed (pip install {package})"

    def decline_reason(self, *keys: Key) -> str | None:
        """Return why this process lacks one of these kernels, None if it can have them all."""
        if not self._failed:
            return None
        return next((self._failed[key] for key in (None, *keys) if key in self._failed), None)

    def ready(self, key: Key) -> bool:
        """Return whether a kernel is compiled."""
        return key in self._compiled

    def get(self, key: Key, *, give_up: bool = True) -> Kernel:
        """Return a kernel, compiled if needed, or raise PathUnavailable.

        Without ``give_up`` the compiler's own error is raised, and the next call tries again.
        """
        kernel = self._compiled.get(key)
        if kernel is not None:
            return kernel
        compile_kernel = self.load()

        def build() -> Kernel:
            if key in self._compiled:
                return self._compiled[key]
            try:
                kernel = compile_kernel(key)
            except OSError:  # another process may be writing the same files
                kernel = compile_kernel(key)
            while len(self._compiled) >= MAX_KERNELS:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = kernel
            return kernel

        return self._try(key, build, "cannot compile its kernel", give_up=give_up)

    def load(self) -> Callable[[Key], Kernel]:
        """Return the compiler, imported if needed, or raise PathUnavailable."""
        if self._compile is None:
            self._compile = self._try(None, self._import, "cannot be imported")
        return self._compile

    def _import(self) -> Callable[[Key], Kernel]:
        return self._compile or self._load()  # another thread may have loaded it meanwhile

    def _try(
        self, key: Key | None, build: Callable[[], Result], failure: str, *, give_up: bool = True
    ) -> Result:
        with IMPORT_LOCK, defer_interrupts() as interrupts:
            if key in self._failed:
                raise PathUnavailable(self._failed[key])
            try:
                return build()
            # A broken compiler raises anything, and other paths need none.
            except Exception as error:
                if interrupts or not give_up:  # an interrupt may have broken it
                    raise
                message = " ".join(str(error).split()) or type(error).__name__
                reason = f"{self._package} {failure}: {message}"
                lost = self._package if key is None else f"a kernel of {self._package}"
                msg = f"rope_xp goes on without {lost}. {reason}"
                warnings.warn(msg, RuntimeWarning, stacklevel=3)
                # Each compiler has its own error for a device that is out of memory.
                if not isinstance(error, MemoryError) and "out of memory" not in message.lower():
                    self._failed[key] = reason
                raise PathUnavailable(reason) from error


def decline_norm(call: Call) -> str | None:
    """Return why a kernel does not normalize the arrays of a call, None if it can."""
    norm, weights = call.spec.norm, call.weights
    if norm is None:
        return None
    if any(w is not None and len(w.shape) > 1 for w in weights):
        return "its kernels take one weight for all heads"
    dtypes = {None if w is None else call.backend.dtype_name(w) for w in weights}
    return "weights of q and k differ in dtype, or one has none" if len(dtypes) > 1 else None


def decline_slots(call: Call) -> str | None:
    """Return why a kernel of a GPU does not write the keys of a call to slots, None if it can."""
    if call.slots is None:
        return None
    q, k = call.arrays
    if q.dtype != k.dtype:
        return "its kernel writes k to slots where q has the same dtype"
    if len(call.spec.axes.batch) > 1:
        return "its kernel writes to slots by one batch axis"
    cache, key = (call.backend.memory(x) for x in (call.slots.cache, k))
    if cache is not None and cache.strides[-1] != cache.itemsize:
        return "the last axis of the cache is not contiguous"
    return "k lies in the memory of the cache" if have_overlap(cache, key) else None
