"""LLVM's kernels: one for each dtype and layout, compiled when it is first needed."""

import importlib.util
import logging
from collections.abc import Callable
from typing import TypeAlias

from rope_xp._dispatch.kernels import Kernels

from .plan import KernelKey

Kernel: TypeAlias = Callable[..., int]


def _load() -> Callable[[KernelKey], Kernel]:
    from . import machine

    return machine.compile_kernel


KERNELS: Kernels[KernelKey, Kernel] = Kernels("llvmlite", _load)
if importlib.util.find_spec("llvmlite") is None:
    logging.getLogger("rope_xp").warning(
        "llvmlite is not installed. Without it numpy and torch have no compiled kernels\n"
        "on CPUs, and calls take two to four times as long: pip install llvmlite"
    )
