"""Kernel calls on arrays in CPU memory, on one thread or several. Shared by numpy and torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rope_xp._core.call import RotationSpec, get_interleaved

from . import threads as pool
from .compiled import Kernel
from .plan import CpuPlan, KernelKey

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Larger results leave the last cache before they are read, and are written past it."""


def get_kernel_keys(spec: RotationSpec, dtypes: Sequence[str]) -> list[KernelKey]:
    """Return the keys of the kernels that rotate arrays of these dtypes."""
    return [KernelKey(dtype, *get_interleaved(spec)) for dtype in dtypes]


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
                raise _memory_error()


def _run_kernel(kernel: Kernel, *arguments: int) -> None:
    if kernel(*arguments):
        raise _memory_error()


def _memory_error() -> MemoryError:
    return MemoryError("out of memory: cannot allocate scratch for cos and sin")
