"""Kernels compiled by LLVM, and their calls on CPU memory, on one thread or several."""

import importlib.util
import logging
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64
from dataclasses import dataclass
from typing import Any, TypeAlias

from rope_xp._core.call import Call, RotationSpec, get_interleaved
from rope_xp._core.memory import share_elements
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.kernels import Kernels, decline_norm

from .plan import CHECK, NO_MEMORY, STREAM, CpuPlan, KernelKey, NormKey
from .threads import run_in_parts

ELEMENTS_A_THREAD = 1 << 19
"""Waking a second thread takes 20 to 60 us, as long as rotating this many elements."""
BYTES_TO_STREAM = 1 << 25
"""Larger results leave the last cache before they are read, and are written past it."""
MAX_ROW = 1024
"""Components of a row, of which all are in one block of code."""

Kernel: TypeAlias = Callable[..., int]
Locate: TypeAlias = Callable[[Any], int]
"""Returns the address of the elements of an array of a library."""


def _load_compiler() -> Callable[[KernelKey], Kernel]:
    from . import machine

    return machine.compile_kernel


MAX_KERNELS = 64
"""A kernel takes 0.1 MB, at most 0.4."""
KERNELS: Kernels[KernelKey, Kernel] = Kernels("llvmlite", _load_compiler, MAX_KERNELS)
if importlib.util.find_spec("llvmlite") is None:
    logging.getLogger("rope_xp").warning(
        "llvmlite is not installed. Without it numpy and torch have no compiled kernels\n"
        "on CPUs, and calls take two to four times as long: pip install llvmlite"
    )


def get_kernel_keys(call: Call) -> list[KernelKey]:
    """Return the keys of the kernels that rotate the parts of a call, which share angles."""
    keys = []
    for part in call.split(one_dtype=True):
        x, (weight, *_) = part.arrays[0], (*part.weights, None)
        dtypes = [None if a is None else call.backend.dtype_name(a) for a in (x, weight)]
        key = build_kernel_key(dtypes[0] or "", dtypes[1], x.shape[-1], call.spec)
        whole = not getattr(call.angles[0], "components", 0)
        keys.append(key._replace(whole=whole, scatters=call.offsets is not None))
    return keys


def build_kernel_key(
    dtype: str, weight_dtype: str | None, head_dim: int, spec: RotationSpec
) -> KernelKey:
    """Return what a kernel is compiled for."""
    first, pairs = spec.rotary_offset, int(spec.rotary_dim) // 2  # torch.jit.trace has tensors
    key = KernelKey(dtype, *get_interleaved(spec), pairs)
    if spec.norm is None:
        return key
    rest = (0, 0) if spec.norm.over_slice else (first, head_dim - first - 2 * pairs)
    return key._replace(norm=NormKey(weight_dtype or "", *rest))


def decline_rows(call: Call) -> str | None:
    """Return why kernels do not take the rows of a call."""
    if call.spec.rotary_dim > MAX_ROW:
        return f"its kernels rotate at most {MAX_ROW} components"
    if call.spec.norm is not None and call.arrays[0].shape[-1] > MAX_ROW:
        return f"its kernels normalize heads of at most {MAX_ROW} components"
    return decline_norm(call)


def locate_tables(tables: DigitTables, locate: Locate) -> Any:
    """Return the addresses of tables as a C array, which kernels read."""
    addresses = [0 if table is None else locate(table) for table in tables]
    pointers = (c_int64 * len(addresses))(*addresses)
    object.__setattr__(tables, "pointers", pointers)  # the same whoever sets it
    return pointers


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """Runs a kernel on arrays of one plan: one array, or two that share their angles."""

    kernel: "weakref.ref[Kernel]"
    plan: CpuPlan
    locate: Locate
    limit: Callable[[], int]
    """Returns the maximum number of threads."""

    def __call__(
        self, held: tuple[Any, ...], tables: DigitTables | None, are_apart: bool, mode: int = 0
    ) -> bool:
        """Rotate arrays into results, or return False before anything is written.

        ``held`` are arrays, weights, arrays of angles and offsets, then results unless the plan is
        in place. ``are_apart`` says that no result overlaps anything else that is read or written.
        ``mode`` is CHECK where positions have not been checked.
        """
        kernel, plan, pointers = self.kernel(), self.plan, [*map(self.locate, held)]
        if kernel is None or (0 in pointers and _lack_memory(plan, pointers)):
            return False
        if not are_apart:
            for i, j, least, most in plan.overlaps:
                distance = pointers[j] - pointers[i]
                if least < distance < most and share_elements(
                    plan.extents[i], plan.extents[j], distance
                ):
                    return False
        pointers.append(0)  # of what is absent
        table_address = 0
        if tables is not None:
            table_address = addressof(tables.pointers or locate_tables(tables, self.locate))
        arguments = table_address, *plan.arrange(pointers), *plan.norm
        threads = plan.elements // ELEMENTS_A_THREAD
        if threads > 1:
            threads = min(threads, self.limit())
        if plan.bytes >= BYTES_TO_STREAM:
            mode |= STREAM
        if threads <= 1 and len(plan.addresses) == 1:
            status = kernel(plan.releases, plan.addresses[0], 0, plan.rows, mode, *arguments)
        else:
            status = self._run_parts(kernel, mode, threads, arguments, (held, tables))
        if status == NO_MEMORY:
            raise MemoryError("out of memory: cannot allocate scratch for cos and sin")
        return status == 0

    def _run_parts(
        self, kernel: Kernel, mode: int, threads: int, arguments: tuple[int, ...], held: object
    ) -> int:
        """Rotate in several kernel calls, and return a status other than 0 if any is."""
        plan, statuses = self.plan, [0]
        if mode & CHECK:  # check all before any part writes
            statuses = [kernel(True, params, 0, 0, CHECK, *arguments) for params in plan.addresses]
            mode &= ~CHECK
        for params in plan.addresses if not any(statuses) else ():

            def run(start: int, stop: int, params: int = params, _held: object = held) -> None:
                # Parts hold the arrays, whose addresses they have.
                statuses.append(kernel(True, params, start, stop, mode, *arguments))

            run_in_parts(run, plan.rows, threads)
        return max(statuses)


def _lack_memory(plan: CpuPlan, pointers: Sequence[int]) -> bool:
    """Return whether an array with elements has no address, as functional tensors have none."""
    extents = zip(pointers, plan.extents, strict=True)
    return any(pointer == 0 and extent.end > extent.start for pointer, extent in extents)
