"""LLVM's kernels: one for each dtype and layout, compiled when it is first needed."""

from collections.abc import Callable
from typing import TypeAlias

from rope_xp._dispatch.kernels import Kernels

from .plan import KernelKey

Kernel: TypeAlias = Callable[..., int]


def _load() -> Callable[[KernelKey], Kernel]:
    from . import machine

    return machine.compile_kernel


KERNELS: Kernels[KernelKey, Kernel] = Kernels("llvmlite", _load)
