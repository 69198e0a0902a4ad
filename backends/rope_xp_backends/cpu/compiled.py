"""numba's kernels: one for each dtype and layout, compiled when it is first needed."""

from collections.abc import Callable
from typing import TypeAlias

from rope_xp._dispatch.kernels import Errors, Kernels

Kernel: TypeAlias = Callable[..., None]
Key: TypeAlias = tuple[str, bool, bool]
"""Of a kernel: dtype, and whether pairs lie side by side where they are read and written."""


def _load() -> tuple[Callable[[Key], Kernel], Errors]:
    from . import kernel

    return lambda key: kernel.compiled(*key), (kernel.Error,)


KERNELS: Kernels[Key, Kernel] = Kernels("numba", _load)
