"""torch's operator on CPUs: the native module on the tensors' own memory."""

from typing import Any

import torch

from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp_backends.cpu import native

from .library import Tensors
from .op_args import OpArgs
from .results import allocate_result, bump_versions


def rotate_on_cpu(
    out: Tensors | None, arrays: Tensors, op_args: OpArgs, weights: Tensors
) -> Tensors:
    """Rotate arrays into out, which overlaps nothing else, or raise PathUnavailable before."""
    if native.MISSING is not None:  # in a graph that was made elsewhere
        raise PathUnavailable(native.MISSING)
    weights = tuple([w.contiguous() for w in weights])
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    results = out or tuple(map(allocate_result, arrays))
    angles = _cast_angle_inputs(op_args, arrays[0].dtype)
    tables = DigitTables(*op_args.tables) if op_args.is_lookup else None
    spec = _describe_spec(op_args)
    native.rotate(spec, arrays, results, weights, angles, tables)
    if out is not None:
        bump_versions(out)
    return results


def _describe_spec(op_args: OpArgs) -> tuple[Any, ...]:
    columns = 1  # the last axis of positions, or a step between columns of cos and sin
    if op_args.is_lookup and (op_args.components is None or op_args.positions is None):
        columns = -1
    return native.describe_spec(op_args.spec, columns)


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
