"""torch's operator on CPUs: the native module on the tensors' own memory."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import is_

import torch

from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.recent_calls import RecentLaunch
from rope_xp_backends.cpu import native, threads
from rope_xp_backends.cpu.native import CHECK_OVERLAP, CHECK_POSITIONS, DTYPES, Rotate

from . import private
from .library import NAMES, Tensors
from .op_args import (
    HUGE_BYTES,
    OpArgs,
    OpNorm,
    allocate_result,
    bump_versions,
    empty_result,
)

if native.MISSING is None and private.dlpack_exchange is not None:
    kinds = torch.Tensor, torch.nn.Parameter
    native.module.set_up_torch(*kinds, private.dlpack_exchange)


def describe(x: torch.Tensor) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Describe a tensor that the native module cannot read by itself, see ``Describe``."""
    name, size = NAMES.get(x.dtype), x.itemsize
    number = DTYPES.index(name) if name in DTYPES else len(DTYPES)
    return x.data_ptr(), number, tuple(x.shape), tuple([n * size for n in x.stride()])


@dataclass(frozen=True, slots=True)
class NativeLaunch:
    """Runs the native function for a signature."""

    run: Rotate
    allocate: Callable[[torch.Tensor], torch.Tensor]
    """Returns memory for the result of a tensor."""

    def __call__(self, signature: CallSignature, tables: DigitTables | None) -> Tensors | None:
        _, arrays, weights, angle_inputs, out = signature
        results = tuple([self.allocate(x) for x in arrays]) if out is None else out
        checks = 0 if out is None else CHECK_OVERLAP
        if not self.run(arrays, results, weights, angle_inputs, tables, checks):
            return None
        if out is not None:
            bump_versions(out)
        return results

    def recognize(self, signature: CallSignature, given: Tensors) -> RecentLaunch | None:
        """Return a launch for calls on tensors like those of a signature and ``given`` angles."""
        _, arrays, weights, angle_inputs, out = signature
        converts = _converts_positions(given, angle_inputs)
        recorded = torch.is_grad_enabled() and arrays[0].requires_grad
        if converts is None or recorded or not arrays[0].numel():
            return None
        operands = arrays + weights + given
        apart = out is not None and not all(map(is_, arrays, out))
        if apart:
            operands += out  # type: ignore[operator]  # not None here
        layouts = [
            (type(x), x.dtype, x.shape, None if x.is_contiguous() else x.stride()) for x in operands
        ]
        checks = CHECK_POSITIONS if len(angle_inputs) == 1 else 0
        n = len(weights)
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
            angles = inputs[:n], inputs[n:], tables
            if out is None:
                results = tuple([allocate(x) for x in arrays])
                return results if launch(arrays, results, *angles, checks) else None
            inference = is_inference()
            if not inference and (out[0].is_inference() or out[-1].is_inference()):
                return None  # only inference mode may write them
            if not launch(arrays, out, *angles, checks | CHECK_OVERLAP):
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
    if native.MISSING is not None:  # in a graph that was made elsewhere
        raise PathUnavailable(native.MISSING)
    weights = () if norm is None else tuple([w.contiguous() for w in norm.weights])
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    results = out or tuple(map(allocate_result, arrays))
    angles = _cast_angle_inputs(op_args, arrays[0].dtype)
    tables = DigitTables(*op_args.tables) if op_args.is_lookup else None
    rotate = _make_rotate(op_args, norm, component_axis=1)
    rotate.run(arrays, results, weights, angles, tables, offsets=offsets)
    if out is not None:
        bump_versions(out)
    return results


def prepare_native_launch(
    _out: Tensors,
    arrays: Tensors,
    op_args: OpArgs,
    norm: OpNorm | None = None,
    *,
    angle_inputs: Tensors = (),
) -> NativeLaunch:
    """Return the launch of all tensors like these, and of positions as the caller has them."""
    # Where they do the same, torch.empty_like takes less time than allocate_result.
    default = all(
        x.nbytes < HUGE_BYTES and torch.empty_like(x).stride() == empty_result(x).stride()
        for x in arrays
    )
    allocate = torch.empty_like if default else allocate_result
    step = 1
    if not op_args.is_lookup and angle_inputs[0].shape[-1] != op_args.table.shape[-1]:
        # Tables of a model, of which columns are read. An expanded axis has steps of 0.
        step = op_args.table.stride(-1) // (angle_inputs[0].stride(-1) or 1) or 1
    return NativeLaunch(_make_rotate(op_args, norm, 0, step), allocate)


def _make_rotate(
    op_args: OpArgs, norm: OpNorm | None, component_axis: int, step: int = 1
) -> Rotate:
    """Return the native function for a rotation of tensors. Positions may have that axis."""
    spec = op_args.spec._replace(norm=norm and norm.spec)
    if op_args.components is None or op_args.positions is None:
        component_axis = -1
    columns = component_axis if op_args.is_lookup else step
    return Rotate(native.describe_spec(spec, columns), describe, limit_threads)


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
