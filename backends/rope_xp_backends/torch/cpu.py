"""torch's operator on CPUs: from tensors to LLVM kernels on the tensors' own memory."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple

import torch

from rope_xp._core.caches import cached
from rope_xp._core.call import NormSpec
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import Extent, Ints, measure_extent
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.recent_calls import RecentLaunch
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import KERNELS, MAX_ROW, CpuLaunch, build_kernel_key
from rope_xp_backends.cpu.plan import CHECK, CpuPlan, KernelKey, Layouts, build_plan

from . import private
from .library import NAMES, Tensors
from .op_args import (
    HUGE_BYTES,
    N_TENSORS,
    OpArgs,
    OpNorm,
    allocate_result,
    build_spec,
    bump_versions,
    empty_result,
)


class _Layout(NamedTuple):
    """All of a tensor that a plan depends on. Strides are in elements."""

    dtype: torch.dtype
    shape: Ints
    strides: Ints

    def measure(self) -> Extent:
        size = self.dtype.itemsize
        return measure_extent(tuple(self.shape), tuple([n * size for n in self.strides]), size)


@dataclass(frozen=True, slots=True)
class LLVMLaunch:
    """Runs a kernel by the plan of a signature, on tensors of its layouts."""

    run: CpuLaunch
    """The kernel and its parameters."""
    allocate: Callable[[torch.Tensor], torch.Tensor]
    """Returns memory for the result of a tensor."""

    def __call__(self, signature: CallSignature, tables: DigitTables | None) -> Tensors | None:
        _, arrays, weights, angle_inputs, out = signature
        results = tuple([self.allocate(x) for x in arrays]) if out is None else out
        held = arrays + weights + angle_inputs
        if not self.run.plan.in_place:
            held += results
        if not self.run(held, tables, out is None):
            return None
        if out is not None:
            bump_versions(out)
        return results

    def recognize(self, signature: CallSignature, given: Tensors) -> RecentLaunch | None:
        """Return a launch for calls on tensors like those of a signature and ``given`` angles."""
        _, arrays, weights, angle_inputs, out = signature
        converts = _converts_positions(given, angle_inputs)
        recorded = torch.is_grad_enabled() and arrays[0].requires_grad
        if converts is None or recorded or not self.run.plan.rows:
            return None
        operands = arrays + weights + given
        apart = out is not None and not all(map(is_, arrays, out))
        if apart:
            operands += out  # type: ignore[operator]  # not None here
        layouts = [
            (type(x), x.dtype, x.shape, None if x.is_contiguous() else x.stride()) for x in operands
        ]
        mode = CHECK if len(angle_inputs) == 1 else 0
        launch, allocate, strided = self.run, self.allocate, torch.strided
        is_observed, is_recorded = private.is_observed, torch.is_grad_enabled
        is_inference, increment = torch.is_inference_mode_enabled, private.increment_versions

        def run(
            arrays: Tensors, out: Tensors | None, inputs: Tensors, tables: DigitTables | None
        ) -> Tensors | None:
            operands = arrays + inputs + out if apart else arrays + inputs  # type: ignore[operator]  # not None then
            if len(operands) != len(layouts) or is_observed():
                return None
            # No function for a tensor: a call takes as long as two attributes.
            for x, (kind, dtype, shape, strides) in zip(operands, layouts):  # noqa: B905  # of one length; strict= takes 0.2 us
                if (
                    type(x) is not kind
                    or x.dtype is not dtype
                    or not x.is_cpu
                    or x.is_nested
                    or x.layout is not strided
                    or x.shape != shape
                    or (x.stride() != strides if strides else not x.is_contiguous())
                    or x.is_neg()
                    or (x.requires_grad and is_recorded())
                ):
                    return None
            if converts:
                inputs = *inputs[:-1], inputs[-1].to(torch.int64)
                operands = arrays + inputs + out if apart else arrays + inputs  # type: ignore[operator]  # not None then
            if out is None:
                results = tuple([allocate(x) for x in arrays])
                return results if launch(operands + results, tables, True, mode) else None
            inference = is_inference()
            if not inference and (out[0].is_inference() or out[-1].is_inference()):
                return None  # only inference mode may write them
            if not launch(operands, tables, False, mode):
                return None
            (bump_versions if inference else increment)(out)
            return out

        return run


def _converts_positions(given: Tensors, angle_inputs: Tensors) -> bool | None:
    """Return whether int32 is given where kernels read int64, None if they read anything else."""
    if len(given) == len(angle_inputs) and all(map(is_, given, angle_inputs)):
        return False
    if len(given) != 1 or type(given[0]) is not torch.Tensor or len(angle_inputs) != 1:
        return None
    narrow = given[0].dtype is torch.int32 and given[0].is_contiguous()
    return True if narrow and given[0].shape == angle_inputs[0].shape else None


def rotate_on_cpu(
    out: Tensors | None,
    arrays: Tensors,
    op_args: OpArgs,
    norm: OpNorm | None,
    offsets: Tensors = (),
) -> Tensors:
    """Rotate arrays into out, which overlaps nothing else, or raise PathUnavailable before."""
    weights = () if norm is None else tuple([w.contiguous() for w in norm.weights])
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    op_args = op_args.with_angle_inputs(_cast_angle_inputs(op_args, arrays[0].dtype))
    results = out or tuple(map(allocate_result, arrays))
    run = _plan_launch(results, arrays, op_args, norm and OpNorm(norm.spec, weights), offsets)
    tables = DigitTables(*op_args.tables) if op_args.is_lookup else None
    held = arrays + weights + op_args.angle_inputs + offsets
    if not run.plan.in_place:
        held += results
    if not run(held, tables, True):
        raise PathUnavailable("a tensor has no memory")
    if out is not None:
        bump_versions(out)
    return results


def prepare_llvm_launch(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None = None
) -> LLVMLaunch:
    """Return the launch of all tensors with these layouts."""
    # Where they do the same, torch.empty_like takes less time than allocate_result.
    default = all(
        x.nbytes < HUGE_BYTES and torch.empty_like(x).stride() == empty_result(x).stride()
        for x in arrays
    )
    allocate = torch.empty_like if default else allocate_result
    return LLVMLaunch(_plan_launch(out, arrays, op_args, norm), allocate)


def _plan_launch(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None, offsets: Tensors = ()
) -> CpuLaunch:
    components: tuple[int, ...] = ()
    if op_args.components is not None and op_args.positions is not None:
        components, count = tuple(op_args.components.tolist()), op_args.positions.shape[-1]
        if not 0 <= min(components) <= max(components) < count:
            raise RopeError(f"components must be indices below {count}; got {components}")
    groups = arrays, out, norm.weights if norm else (), op_args.angle_inputs, offsets
    layouts = tuple(
        [tuple([_Layout(x.dtype, x.shape, x.stride()) for x in tensors]) for tensors in groups]
    )
    in_place = tuple([x is y for x, y in zip(arrays, out, strict=True)])
    pairs = op_args.table.shape[-1] // (2 if op_args.is_lookup else 1)
    if 2 * pairs > MAX_ROW:
        raise PathUnavailable(f"its kernels rotate at most {MAX_ROW} components")
    angles = pairs, op_args.is_lookup, components
    key, plan = plan_layouts(layouts, in_place, *angles, op_args[N_TENSORS:], norm and norm.spec)
    return CpuLaunch(weakref.ref(KERNELS.get(key)), plan, torch.Tensor.data_ptr, limit_threads)


@cached(512)
def plan_layouts(
    layouts: tuple[tuple[_Layout, ...], ...],
    in_place: tuple[bool, ...],
    pairs: int,
    is_lookup: bool,
    components: tuple[int, ...],
    plain_args: tuple[Any, ...],
    norm: NormSpec | None,
) -> tuple[KernelKey, CpuPlan]:
    """Return the kernel and the plan of arrays, results, weights, angles and offsets."""
    arrays, out, weights, rows, offsets = layouts
    axes, layout, offset, inverse = plain_args
    spec = build_spec(axes, layout, offset, inverse, 2 * pairs, norm)
    if is_lookup and not components:
        rows = tuple([_Layout(row.dtype, (*row.shape, 1), (*row.strides, 0)) for row in rows])
    groups = arrays, weights, rows, offsets, out
    extents = [tuple([x.measure() for x in xs]) for xs in groups]
    plan = build_plan(Layouts(in_place, *extents), spec, is_lookup, components)
    first, weight_dtype = arrays[0], NAMES[weights[0].dtype] if weights else None
    key = build_kernel_key(NAMES[first.dtype], weight_dtype, first.shape[-1], spec)
    return key._replace(whole=not components, scatters=bool(offsets)), plan


def _cast_angle_inputs(op_args: OpArgs, dtype: torch.dtype) -> Tensors:
    """Return positions and their fractions, or cos and sin, in the dtypes that kernels read."""
    compute_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if not op_args.is_lookup:
        return op_args.table.to(compute_dtype), op_args.table_2.to(compute_dtype)
    if op_args.positions is None:
        return ()
    whole = op_args.positions
    if whole.dtype is not torch.int64:
        whole = whole.to(torch.int64)
    return (whole,) if op_args.part is None else (whole, op_args.part.to(compute_dtype))


def limit_threads() -> int:
    """Return how many threads may run: torch's own limit holds too, which obeys OpenMP's."""
    return min(threads.limit(openmp=False), torch.get_num_threads())
