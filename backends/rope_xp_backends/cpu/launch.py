"""From arrays in CPU memory to kernels. Shared by numpy and torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rope_xp._core.call import RotationSpec

from . import threads as pool
from .compiled import Kernel
from .plan import Angles, KernelKey, Pair, Plan, plan

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Results that leave the last cache before anyone reads them are written past it."""


def keys(spec: RotationSpec, dtypes: Sequence[str]) -> list[KernelKey]:
    """Return the keys of the kernels that turn arrays of these dtypes."""
    read, write = spec.interleaved
    return [KernelKey(dtype, read, write) for dtype in dtypes]


# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """What rotates all arrays that lie like this: one array or two that share their angles.

    It has the addresses of tables, which whoever calls it must hold.
    """

    kernel: Kernel
    plan: Plan

    def __call__(self, *addresses: int, limit: Callable[[], int]) -> None:
        """Rotate, given addresses of q, q_out, k, k_out and of two arrays of angles.

        ``limit`` returns how many threads may work.
        """
        kernel, plan = self.kernel, self.plan
        stream = plan.bytes >= BYTES_TO_STREAM
        threads = plan.bytes // BYTES_A_THREAD
        if threads > 1:
            threads = min(threads, limit())
        for params in plan.addresses:
            if threads > 1:
                run = partial(_run, kernel, params, *addresses, stream)
                pool.share(run, plan.rows, threads)
            elif kernel(params, *addresses, stream, 0, plan.rows):
                raise _no_memory()


def _run(kernel: Kernel, *arguments: int) -> None:
    if kernel(*arguments):
        raise _no_memory()


def _no_memory() -> MemoryError:
    return MemoryError("out of memory: cannot allocate scratch for cos and sin")


def prepare(
    kernel: Kernel, operands: Sequence[Pair], angles: Angles, spec: RotationSpec, itemsize: int
) -> Launch:
    """Return what rotates arrays that lie like this."""
    return Launch(kernel, plan(operands, angles, spec, itemsize))
