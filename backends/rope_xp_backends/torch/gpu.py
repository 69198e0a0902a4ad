"""torch's operator on GPUs: from tensors to launches of Triton's kernel.

Nothing is read from the device or waited for, so a CUDA graph can record it all.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import eq
from typing import Any, TypeAlias

import torch

from rope_xp._core.caches import cached, pin
from rope_xp._core.call import Call, Slots
from rope_xp._core.memory import StridedLayout, alignment
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.kernels import Kernels, decline_norm, decline_slots
from rope_xp_backends.gpu import lay_out_keys
from rope_xp_backends.gpu.triton_plan import (
    LARGEST_ROW,
    AngleLayout,
    KernelVariant,
    TritonPlan,
    plan_launch,
)

from . import private
from .library import NAMES, Tensors
from .op_args import OpArgs
from .results import allocate_result, bump_versions, find_allocator

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
    if call.spec.norm is not None and arrays[0].dtype != arrays[-1].dtype:
        return "its kernel normalizes q and k of one dtype"
    return decline_slots(call) or decline_norm(call)


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
    allocate: Callable[[torch.Tensor], torch.Tensor] = allocate_result

    def __call__(
        self,
        arrays: Tensors,
        weights: Tensors,
        rows: Tensors,
        out: Tensors | None,
        tables: DigitTables | None,
        slots: torch.Tensor | None = None,
    ) -> Tensors:
        """Launch it on tensors that lie like those of the plan, on the current device.

        ``rows`` are positions, or cos and sin, of q, then those of k where they differ.
        """
        results = tuple(map(self.allocate, arrays)) if out is None else out
        # The kernel reads nothing from an absent tensor, but wants an address.
        apart = self.plan.variant.apart
        if tables is None:
            angles = (*rows[:2], *(rows[0],) * 3, *(rows[2:] if apart else (None, None)), None)
        else:
            low = tables.low
            component: Any = tables.component if self.components else low
            own = rows[-1] if apart else None
            where = rows[0] if rows else low
            angles = (low, tables.middle, tables.high, where, component, None, None, own)
        weight = (*weights[:1], *weights[-1:]) or (None, None)
        operands = *weight, arrays[0], results[0], arrays[-1], results[-1]
        self.run(self.plan.grid, (*operands, *angles, slots), self.plan.numbers)
        if out is not None:
            bump_versions(out)
        return results


def rotate_on_gpu(
    out: Tensors | None,
    arrays: Tensors,
    op_args: OpArgs,
    weights: Tensors = (),
    k_args: OpArgs | None = None,
    slots: Slots | None = None,
) -> Tensors:
    """Rotate arrays into out, or raise PathUnavailable before anything is written.

    ``k_args`` have angles of k alone. The result of k goes to ``slots``, if there are any, in the
    cache that is its out.
    """
    results = tuple(map(allocate_result, arrays)) if out is None else out
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    op_args, k_args = _read_tables(op_args, arrays), k_args and _read_tables(k_args, arrays)
    device = arrays[0].device
    with contextlib.nullcontext() if is_current(arrays[0]) else torch.cuda.device(device):
        launches = _find_launches(results, arrays, op_args, weights, k_args, slots)
        if op_args.is_lookup and private.is_capturing(device):
            pin(op_args.tables)  # of a compiled call, or saved for its gradient
        numbers = None if slots is None else slots.numbers
        for launch, part_arrays, part_out, part_args in launches:
            tables = DigitTables(*part_args.tables) if part_args.is_lookup else None
            rows = part_args.angle_inputs + (k_args.angle_inputs if k_args else ())
            launch(part_arrays, weights, rows, part_out, tables, numbers)
    return results


def prepare_triton_launch(
    out: Tensors,
    arrays: Tensors,
    op_args: OpArgs,
    weights: Tensors,
    k_args: OpArgs | None,
    slots: Slots | None,
) -> TritonLaunch | None:
    """Return the launch of all tensors that lie like these, None where one does not suffice."""
    planned = None
    is_read = all(x is None or x is _read_tables(x, arrays) for x in (op_args, k_args))
    if is_current(arrays[0]) and is_read and any(x.numel() for x in arrays):
        planned = _make_plan(out, arrays, op_args, weights, k_args, slots)
    if planned is None or not KERNELS.ready((planned.variant, arrays[0].device.index)):
        return None
    return replace(_load_launch(planned, arrays, op_args), allocate=find_allocator(arrays))


def _find_launches(
    out: Tensors, arrays: Tensors, op_args: OpArgs, *of_all: Any
) -> list[tuple[TritonLaunch, Tensors, Tensors, OpArgs]]:
    """Return launches and their arguments, with all kernels loaded."""
    if not any(x.numel() for x in arrays):
        return []
    planned = _make_plan(out, arrays, op_args, *of_all)
    if planned is None:
        parts = _split_batch(out, arrays, op_args)
        return [launch for part in parts for launch in _find_launches(*part, *of_all)]
    return [(_load_launch(planned, arrays, op_args), arrays, out, op_args)]


def _load_launch(planned: TritonPlan, arrays: Tensors, op_args: OpArgs) -> TritonLaunch:
    # A load may fail while a CUDA graph is captured and succeed at other times.
    device = arrays[0].device
    give_up = not private.is_capturing(device)
    kernel = KERNELS.get((planned.variant, device.index), give_up=give_up)
    return TritonLaunch(kernel, planned, op_args.components is not None)


def _read_dtypes(x: torch.Tensor) -> tuple[torch.dtype, ...]:
    """Return the dtypes of cos and sin that a kernel reads for x."""
    narrow = torch.float32, torch.float16, torch.bfloat16
    return (torch.float64,) if x.dtype is torch.float64 else narrow


def are_read(tables: tuple[Any, ...], x: torch.Tensor) -> bool:
    """Return whether a kernel reads cos and sin for x in their dtype, and no gradient is lost."""
    dtypes = _read_dtypes(x)
    return (
        all(type(t) is torch.Tensor and t.dtype in dtypes and not t.requires_grad for t in tables)
        and tables[0].dtype is tables[1].dtype
    )


def _read_tables(op_args: OpArgs, arrays: Tensors) -> OpArgs:
    """Return the same with cos and sin, if given, that a kernel reads where they lie."""
    cos, sin, dtypes = op_args.table, op_args.table_2, _read_dtypes(arrays[0])
    if op_args.is_lookup:
        return op_args
    if cos.dtype is not sin.dtype or cos.dtype not in dtypes:
        cos, sin = cos.to(dtypes[0]), sin.to(dtypes[0])
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    is_same = cos is op_args.table and sin is op_args.table_2
    return op_args if is_same else op_args._replace(table=cos, table_2=sin)


def can_share(*all_args: OpArgs) -> bool:
    """Return whether one launch takes q and k with angles of these kinds."""
    kinds = set()
    for x in all_args:
        dtype = None if x.positions is None else x.positions.dtype
        kinds.add((x.is_lookup, x.components is None, dtype, x.table.dtype))
    return len(kinds) == 1


def _lay_out_angles(op_args: OpArgs) -> AngleLayout:
    positions, cos, sin = op_args.positions, op_args.table, op_args.table_2
    table_dtype = NAMES[cos.dtype]
    if not op_args.is_lookup:
        aligned, rows = alignment(cos.data_ptr(), sin.data_ptr()), cos.shape[:-1]
        return AngleLayout("tables", rows, cos.stride()[:-1], "int64", table_dtype, aligned)
    if positions is None:
        return AngleLayout("implicit", (), (), "int64", table_dtype)
    name, shape, strides = NAMES[positions.dtype], positions.shape, positions.stride()
    if op_args.components is None:
        return AngleLayout("positions", shape, strides, name, table_dtype)
    components = 1, shape[-1], strides[-1]
    return AngleLayout("components", shape[:-1], strides[:-1], name, table_dtype, *components)


def _make_plan(
    out: Tensors,
    arrays: Tensors,
    op_args: OpArgs,
    weights: Tensors,
    k_args: OpArgs | None,
    slots: Slots | None,
) -> TritonPlan | None:
    """Return the plan of one launch, None where batch axes do not collapse."""
    weight_dtype = NAMES[weights[0].dtype] if weights else ""
    weight_alignment = alignment(*(weight.data_ptr() for weight in weights))
    pointers = [x.data_ptr() for x in arrays + out]
    in_place = tuple(map(eq, pointers, pointers[len(arrays) :]))
    layouts = [StridedLayout(x.shape, x.stride()) for x in arrays + out]
    angles = tuple([_lay_out_angles(x) for x in (op_args, k_args) if x is not None])
    spec, slot_layout = op_args.spec, None
    if slots is not None:
        numbers, k = slots.numbers, layouts[len(arrays) - 1]
        own = StridedLayout(numbers.shape, numbers.stride())
        layouts[-1], slot_layout = lay_out_keys(
            layouts[-1], k, own, NAMES[numbers.dtype], spec, slots.of_sequences
        )
    dtypes = NAMES[arrays[0].dtype], weight_dtype
    call = tuple(layouts), in_place, alignment(*pointers), angles, *dtypes, weight_alignment, spec
    return plan_launch(*call, slot_layout)


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
