"""Kernels compiled by LLVM, and their calls on CPU memory, on one thread or several."""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from rope_xp._core.call import Call, RotationSpec, get_interleaved
from rope_xp._dispatch.kernels import Kernels, decline_norm
from rope_xp._dispatch.norm import QKNorm

from . import threads as pool
from .plan import CpuPlan, KernelKey, NormKey

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Larger results leave the last cache before they are read, and are written past it."""
MAX_NORM = 1024
"""Components of a row, of which all are in one block of code."""

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
    interleaved, spec, norm = get_interleaved(call.spec), call.spec, call.norm
    keys = [KernelKey(call.backend.dtype_name(x), *interleaved) for x in call.arrays]
    if norm is None:
        return keys
    weights = ["" if w is None else call.backend.dtype_name(w) for w in norm.weights]
    return [
        key._replace(norm=build_norm_key(norm, i, x.shape[-1], spec, weights[i]))
        for i, (key, x) in enumerate(zip(keys, call.arrays, strict=True))
    ]


def build_norm_key(
    norm: QKNorm, i: int, head_dim: int, spec: RotationSpec, weight_dtype: str
) -> NormKey:
    """Return what a kernel must know of the norm of array i."""
    weight, first, pairs = norm.weights[i], spec.rotary_offset, spec.rotary_dim // 2
    over_slice = weight is not None and weight.shape[-1] != head_dim
    rest = (0, 0) if over_slice else (first, head_dim - first - 2 * pairs)
    return NormKey(weight_dtype, pairs, *rest, float(norm.eps), float(norm.offset))


def decline_long_norm(call: Call) -> str | None:
    """Return why kernels do not normalize the arrays of a call."""
    if call.norm is not None and call.arrays[0].shape[-1] > MAX_NORM:
        return f"its kernels normalize heads of at most {MAX_NORM} components"
    return decline_norm(call)


def pad_inputs(inputs: list[int], weights: int) -> list[int]:
    """Return addresses of two weights and two angle inputs, 0 for those that are absent."""
    if weights == 1:
        inputs.insert(1, 0)  # k has none
    return [*inputs, 0, 0][:4]


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """Runs a kernel on all arrays of one plan: one array, or two that share their angles."""

    kernel: Kernel
    plan: CpuPlan

    def __call__(self, *addresses: int, limit: Callable[[], int]) -> None:
        """Rotate, given addresses of q, q_out, k, k_out, weights, and two arrays of angles.

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
