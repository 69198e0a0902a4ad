"""numba's kernels: one for each dtype and layout, compiled when it is first needed."""

from collections.abc import Callable
from typing import TypeAlias

from rope_xp._dispatch.kernels import Kernels

Kernel: TypeAlias = Callable[..., None]
Key: TypeAlias = tuple[str, bool, bool]
"""Of a kernel: dtype, and whether pairs lie side by side where they are read and written."""


def _load() -> Callable[[Key], Kernel]:
    from . import kernel

    if not kernel.finds_elements():
        msg = "objects of numpy are laid out in another way than the kernels expect"
        raise ImportError(msg)
    return lambda key: kernel.compiled(*key)


KERNELS: Kernels[Key, Kernel] = Kernels("numba", _load)
