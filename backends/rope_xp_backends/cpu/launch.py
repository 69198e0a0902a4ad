"""Kernels compiled by LLVM, and their calls on CPU memory, on one thread or several."""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from rope_xp._core.call import Call, get_interleaved
from rope_xp._dispatch.kernels import Kernels

from . import threads as pool
from .plan import CpuPlan, KernelKey

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Larger results leave the last cache before they are read, and are written past it."""

_OUT_OF_MEMORY = "out of memory: cannot allocate scratch for cos and sin"
Kernel: TypeAlias = Callable[..., int]


def _load_compiler() -> Callable[[KernelKey], Kernel]:
    from . import machine

    return machine.compile_kernel


KERNELS: Kernels[KernelKey, Kernel] = Kernels("llvmlite", _load_compiler)
if importlib.util.find_spec("llvmlite") is None:
    logging.getLogger("rope_xp").warning(
        "llvmlite is not installed. Without it numpy and torch have no compiled kernels\n"
        "on CPUs, and calls take two to four times as long: pip install llvmlite"
    )


def get_kernel_keys(call: Call) -> list[KernelKey]:
    """Return the keys of the kernels that rotate the arrays of a call."""
    interleaved = get_interleaved(call.spec)
    return [KernelKey(call.backend.dtype_name(x), *interleaved) for x in call.arrays]


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """Runs a kernel on all arrays of one plan: one array, or two that share their angles."""

    kernel: Kernel
    plan: CpuPlan

    def __call__(self, *addresses: int, limit: Callable[[], int]) -> None:
        """Rotate, given addresses of q, q_out, k, k_out and of two arrays of angles.

        ``limit`` returns the maximum number of threads.
        """
        kernel, plan = self.kernel, self.plan
        stream = plan.bytes >= BYTES_TO_STREAM
        threads = plan.bytes // BYTES_A_THREAD
        if threads > 1:
            threads = min(threads, limit())
        for params in plan.addresses:
            if threads > 1:
                run = partial(_run_kernel, kernel, params, *addresses, stream)
                pool.share(run, plan.rows, threads)
            elif kernel(params, *addresses, stream, 0, plan.rows):
                raise MemoryError(_OUT_OF_MEMORY)


def _run_kernel(kernel: Kernel, *arguments: int) -> None:
    if kernel(*arguments):
        raise MemoryError(_OUT_OF_MEMORY)
