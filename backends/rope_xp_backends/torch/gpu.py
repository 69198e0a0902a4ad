"""torch's operator on GPUs: from tensors to launches of Triton's kernel.

Nothing is read from the device or waited for, so a CUDA graph can record it all.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import eq
from typing import Any, TypeAlias

import torch

from rope_xp._core.caches import cached, pin
from rope_xp._core.call import Call
from rope_xp._core.memory import StridedLayout, alignment
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.kernels import Kernels, decline_norm
from rope_xp_backends.gpu.triton_plan import (
    LARGEST_ROW,
    AngleLayout,
    KernelVariant,
    TritonPlan,
    plan_launch,
)

from . import private
from .library import NAMES, Tensors
from .op_args import OpArgs, OpNorm
from .results import allocate_result, bump_versions

DEVICES = {"cuda"}
"""Device types with this kernel. ROCm's is called cuda too."""

RunKernel: TypeAlias = Callable[..., None]


def _load_compiler() -> Callable[[tuple[KernelVariant, int | None]], RunKernel]:
    from rope_xp_backends.gpu import triton_compile

    return lambda key: triton_compile.load_kernel(key[0])


KERNELS: Kernels[tuple[KernelVariant, int | None], RunKernel] = Kernels("triton", _load_compiler)
"""By variant and by the index of the device that was current when they were loaded."""


def kernel_decline_reason(call: Call) -> str | None:
    """Return why a kernel does not rotate tensors of this device, head_dim and norm, or None."""
    arrays, device = call.arrays, call.arrays[0].device
    # A compiler cannot look at devices; the operator will find out.
    capability = (8, 0) if torch.compiler.is_compiling() else _read_capability(device)
    if capability < (8, 0):
        version = ".".join(map(str, capability))
        return f"its kernels need compute capability 8.0, and {device} has {version}"
    for x in arrays:
        n, size = x.shape[-1], x.shape[-1] * x.itemsize
        if size > LARGEST_ROW:
            return f"a head of {n} components is {size} bytes long, and at most {LARGEST_ROW} fit"
    if not all(w is None or w.is_contiguous() for w in call.weights):
        return "its kernel takes contiguous weights"
    if call.spec.norm is not None and len(call.split(one_dtype=True)) > 1:
        return "its kernel normalizes q and k of one dtype, at the same positions"
    return decline_norm(call)


@cached(64)
def _read_capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda" or torch.version.hip:
        return (8, 0)
    return torch.cuda.get_device_capability(device)


def is_current(x: torch.Tensor) -> bool:
    """Return whether a tensor lies on the device that is launched on."""
    return x.device.type != "cuda" or x.device.index == torch.cuda.current_device()


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """Launches a kernel by a plan, on tensors that lie like those of the plan. It holds none."""

    run: RunKernel
    plan: TritonPlan
    components: bool
    """Whether the kernel reads which position component each frequency takes."""

    def __call__(
        self,
        arrays: Tensors,
        weights: Tensors,
        rows: Tensors,
        out: Tensors | None,
        tables: DigitTables | None,
    ) -> Tensors:
        """Launch it on tensors that lie like those of the plan, on the current device."""
        results = tuple([allocate_result(x) for x in arrays]) if out is None else out
        # The kernel reads nothing from an absent tensor, but wants an address.
        if tables is None:
            angles = (*rows, *(rows[0],) * 3)
        else:
            low = tables.low
            component: Any = tables.component if self.components else low
            angles = (low, tables.middle, tables.high, rows[0] if rows else low, component)
        operands = *weights[:1], *weights[-1:], arrays[0], results[0], arrays[-1], results[-1]
        self.run(self.plan.grid, (*operands, *angles), self.plan.numbers)
        if out is not None:
            bump_versions(out)
        return results


def rotate_on_gpu(
    out: Tensors | None, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None = None
) -> Tensors:
    """Rotate arrays into out, or raise PathUnavailable before anything is written."""
    results = tuple(map(allocate_result, arrays)) if out is None else out
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    if not _can_read_angles(op_args):
        cos, sin = op_args.table.contiguous(), op_args.table_2.contiguous()
        op_args = op_args._replace(table=cos, table_2=sin)
    device = arrays[0].device
    with contextlib.nullcontext() if is_current(arrays[0]) else torch.cuda.device(device):
        launches = _find_launches(results, arrays, op_args, norm)
        if op_args.is_lookup and private.is_capturing(device):
            pin(op_args.tables)  # of a compiled call, or saved for its gradient
        for launch, part_arrays, part_out, part_args in launches:
            tables = DigitTables(*part_args.tables) if part_args.is_lookup else None
            rows, weights = part_args.angle_inputs, norm.weights if norm else ()
            launch(part_arrays, weights, rows, part_out, tables)
    return results


def prepare_triton_launch(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None = None
) -> TritonLaunch | None:
    """Return the launch of all tensors that lie like these, None where one does not suffice."""
    planned = None
    if is_current(arrays[0]) and _can_read_angles(op_args) and any(x.numel() for x in arrays):
        planned = _make_plan(out, arrays, op_args, norm)
    if planned is None or not KERNELS.ready((planned.variant, arrays[0].device.index)):
        return None
    return _load_launch(planned, arrays, op_args)


def _find_launches(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None
) -> list[tuple[TritonLaunch, Tensors, Tensors, OpArgs]]:
    """Return launches and their arguments, with all kernels loaded."""
    if not any(x.numel() for x in arrays):
        return []
    planned = _make_plan(out, arrays, op_args, norm)
    if planned is None:
        parts = _split_batch(out, arrays, op_args)
        return [launch for part in parts for launch in _find_launches(*part, norm)]
    return [(_load_launch(planned, arrays, op_args), arrays, out, op_args)]


def _load_launch(planned: TritonPlan, arrays: Tensors, op_args: OpArgs) -> TritonLaunch:
    # A load may fail while a CUDA graph is captured and succeed at other times.
    device = arrays[0].device
    give_up = not private.is_capturing(device)
    kernel = KERNELS.get((planned.variant, device.index), give_up=give_up)
    return TritonLaunch(kernel, planned, op_args.components is not None)


def _can_read_angles(op_args: OpArgs) -> bool:
    """Return whether a kernel reads cos and sin, if given, where they lie."""
    cos, sin = op_args.table, op_args.table_2
    return op_args.is_lookup or (cos.stride() == sin.stride() and cos.stride(-1) == 1)


def _make_plan(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None
) -> TritonPlan | None:
    """Return the plan of one launch, None where batch axes do not collapse."""
    weights = norm.weights if norm else ()
    weight_dtype = NAMES[weights[0].dtype] if weights else ""
    weight_alignment = alignment(*(weight.data_ptr() for weight in weights))
    pointers = [x.data_ptr() for x in arrays + out]
    in_place = tuple(map(eq, pointers, pointers[len(arrays) :]))
    layouts = tuple([StridedLayout(x.shape, x.stride()) for x in arrays + out])
    positions, cos, sin = op_args.positions, op_args.table, op_args.table_2
    if not op_args.is_lookup:
        aligned = alignment(cos.data_ptr(), sin.data_ptr())
        angles = AngleLayout("tables", cos.shape[:-1], cos.stride()[:-1], "int64", aligned)
    elif positions is None:
        angles = AngleLayout("implicit", (), (), "int64")
    else:
        name, shape, strides = NAMES[positions.dtype], positions.shape, positions.stride()
        angles = AngleLayout("positions", shape, strides, name)
        if op_args.components is not None:
            components = 1, shape[-1], strides[-1]
            angles = AngleLayout("components", shape[:-1], strides[:-1], name, *components)
    spec = op_args.spec._replace(norm=norm and norm.spec)
    dtypes = NAMES[arrays[0].dtype], weight_dtype
    aligned = alignment(*pointers)
    return plan_launch(layouts, in_place, aligned, angles, *dtypes, weight_alignment, spec)


def _split_batch(
    out: Tensors, arrays: Tensors, op_args: OpArgs
) -> list[tuple[Tensors, Tensors, OpArgs]]:
    """Return one call for each index of the first batch axis."""
    batch, parts = op_args.spec.axes.batch, []
    axis = batch[0]
    names = op_args.axes[:axis] + op_args.axes[axis + 1 :]
    # Components are the last axis of positions, pairs that of cos and sin.
    ndim = len(batch) + 1 + (not op_args.is_lookup or op_args.components is not None)
    for i in range(arrays[0].shape[axis]):
        inputs = [a[min(i, a.shape[0] - 1)] if a.ndim == ndim else a for a in op_args.angle_inputs]
        part_out, part_arrays = (tuple([x.select(axis, i) for x in xs]) for xs in (out, arrays))
        part_args = op_args.with_angle_inputs(tuple(inputs))._replace(axes=names)
        parts.append((part_out, part_arrays, part_args))
    return parts
