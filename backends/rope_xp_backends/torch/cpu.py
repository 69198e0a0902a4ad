"""torch's operator on CPUs: from tensors to LLVM kernels on the tensors' own memory."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from rope_xp._core.call import get_interleaved
from rope_xp._core.memory import StridedLayout
from rope_xp._dispatch.call_cache import CALLS
from rope_xp._dispatch.norm import QKNorm
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import KERNELS, CpuLaunch, build_norm_key, pad_inputs
from rope_xp_backends.cpu.plan import AngleLayouts, InOut, KernelKey, build_plan

from .library import NAMES, Tensors
from .op_args import HUGE_BYTES, N_TENSORS, OpArgs, allocate_result, bump_versions, empty_result


@dataclass(frozen=True, slots=True)
class LLVMLaunch:
    """Runs a kernel by the plan of a signature, on tensors of its layouts."""

    run: CpuLaunch
    """The kernel and its parameters."""
    allocate: Callable[[torch.Tensor], torch.Tensor]
    """Returns memory for the result of a tensor."""
    weights: int = 0
    """How many of the inputs, the first ones, are weights."""

    def __call__(
        self, arrays: Tensors, out: Tensors | None, inputs: Tensors, _tables: Any = None
    ) -> Tensors:
        results = tuple([self.allocate(x) for x in arrays]) if out is None else out
        rest = [x.data_ptr() for x in inputs]
        rest = pad_inputs(rest, self.weights) if self.weights else [*rest, 0, 0][:2]
        q, q_out = arrays[0].data_ptr(), results[0].data_ptr()
        k = k_out = 0
        if len(arrays) > 1:
            k, k_out = arrays[1].data_ptr(), results[1].data_ptr()
        self.run(q, q_out, k, k_out, *rest, limit=limit_threads)
        if out is not None:
            bump_versions(out)
        return results


def rotate_on_cpu(
    out: Tensors | None, arrays: Tensors, op_args: OpArgs, norm: QKNorm | None = None
) -> Tensors:
    """Rotate arrays into out, or raise PathUnavailable before anything is written."""
    named = () if norm is None else norm.list_weights(len(arrays))
    weights = tuple([w.contiguous() for _, w in named])
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    angle_inputs = _cast_angle_inputs(op_args, arrays[0].dtype)
    key: list[Hashable] = [rotate_on_cpu, op_args[N_TENSORS:], len(arrays)]
    key += () if norm is None else (norm.eps, norm.offset, len(weights))
    for x in (*arrays, *weights, *angle_inputs, *(out or ())):
        key += x.dtype, x.shape, x.stride()
    if op_args.is_lookup:  # the plan has the addresses of tables
        key += [0 if x is None else x.data_ptr() for x in op_args.tables]
    run = CALLS.get(tuple(key))
    if run is None:
        results = out or tuple(map(empty_result, arrays))
        op_args = op_args.with_angle_inputs(angle_inputs)
        run = prepare_llvm_launch(results, arrays, op_args, norm)
        CALLS.store(tuple(key), run)
    return run(arrays, out, weights + angle_inputs)


def prepare_llvm_launch(
    out: Tensors, arrays: Tensors, op_args: OpArgs, norm: QKNorm | None = None
) -> LLVMLaunch:
    """Return the launch of all tensors with these layouts."""
    spec, angle_inputs = op_args.spec, op_args.angle_inputs
    key, weights = KernelKey(NAMES[arrays[0].dtype], *get_interleaved(spec)), 0
    if norm is not None:
        weight, weights = norm.q_weight, len(norm.list_weights(len(arrays)))
        dtype = "" if weight is None else NAMES[weight.dtype]
        key = key._replace(norm=build_norm_key(norm, 0, arrays[0].shape[-1], spec, dtype))
    kernel = KERNELS.get(key)
    pairs = [InOut(_byte_layout(x), _byte_layout(y)) for x, y in zip(arrays, out, strict=True)]
    layouts = [_byte_layout(a) for a in angle_inputs]
    if not op_args.is_lookup:
        angles = AngleLayouts(angle_inputs[0].shape[-1], tuple(layouts), ())
    else:
        component = ()
        if op_args.components is not None and op_args.positions is not None:
            component = tuple(op_args.components.tolist())
        else:
            layouts = [StridedLayout((*a.shape, 1), (*a.strides, 0)) for a in layouts]
        addresses = tuple(0 if t is None else t.data_ptr() for t in op_args.tables)
        angles = AngleLayouts(op_args.table.shape[-1] // 2, tuple(layouts), addresses, component)
    plan = build_plan(pairs, angles, spec, arrays[0].element_size())
    # Where they do the same, torch.empty_like takes less time than allocate_result.
    default = all(
        x.nbytes < HUGE_BYTES and torch.empty_like(x).stride() == empty_result(x).stride()
        for x in arrays
    )
    allocate = torch.empty_like if default else allocate_result
    return LLVMLaunch(CpuLaunch(kernel, plan), allocate, weights)


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


def _byte_layout(x: torch.Tensor) -> StridedLayout:
    size = x.element_size()
    return StridedLayout(tuple(x.shape), tuple([n * size for n in x.stride()]))
