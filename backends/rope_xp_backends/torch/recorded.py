"""Rotations that autograd records outside of transforms: results that exist, and the way back.

The entry and the operator save the same tensors in the same order, as activation checkpointing may
compute a layer by one and then by the other.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from rope_xp._arguments.axes import parse_axes
from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.call import NormSpec, RotationSpec
from rope_xp._core.slices import slice_of
from rope_xp._dispatch import choose
from rope_xp._dispatch.find import require_backend
from rope_xp._dispatch.how import CHECK_COLUMNS, ONE, RECORDED, TRANSPOSED, builders
from rope_xp.norm import QKNorm, describe_norm, read_norm

from . import derivative, entry
from .library import PLAIN, Tensors, is_plain

RotateBack: TypeAlias = Callable[[Tensors, Tensors], Tensors]
"""Returns gradients, rotated back by saved positions, or cos and sin."""
Grads: TypeAlias = tuple[torch.Tensor | None, ...]
_INTEGERS = (torch.int64, torch.int32)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class _Record(torch.autograd.Function):
    """Results that exist, and ``differentiate(gradients of them, saved tensors)``."""

    @staticmethod
    def forward(
        ctx: Any,
        results: Tensors,
        differentiate: Callable[[Grads, Tensors], Grads],
        saved: Tensors,
        *_inputs: torch.Tensor,
    ) -> Tensors:
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.differentiate = differentiate
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return None, None, None, *ctx.differentiate(grads, ctx.saved_tensors)


def record_as(
    results: Tensors,
    differentiate: Callable[[Grads, Tensors], Grads],
    saved: Tensors,
    inputs: Tensors,
) -> Tensors:
    """Return results as autograd records them, with another derivative than a rotation."""
    return tuple(_Record.apply(results, differentiate, saved, *inputs))  # type: ignore[no-untyped-call]  # of torch


def record(results: Tensors, rotate_back: RotateBack, saved: Tensors, arrays: Tensors) -> Tensors:
    """Return results as autograd records them: those of arrays, all of which require gradients.

    A rotation is linear and its transpose is its inverse, so nothing but angles is saved.
    """

    def differentiate(grads: Grads, saved: Tensors) -> Grads:
        used = tuple([g for g in grads if g is not None])
        rotated = iter(rotate_back(used, saved) if used else ())
        return tuple([None if g is None else next(rotated) for g in grads])

    return record_as(results, differentiate, saved, arrays)


def record_norm(
    results: Tensors,
    rotate_back: RotateBack,
    saved: Tensors,
    arrays: Tensors,
    weights: Tensors,
    spec: RotationSpec,
) -> Tensors:
    """Return results of normalized arrays, of which some or some weights require gradients."""

    def differentiate(grads: Grads, tensors: Tensors) -> Grads:
        n, angle_inputs, operands = len(grads), tensors[:count], tensors[count:]
        pairs = zip(grads, operands, strict=False)
        filled = tuple([torch.zeros_like(x) if g is None else g for g, x in pairs])
        rotated = rotate_back(filled, angle_inputs)
        return derivative.differentiate(operands[:n], operands[n:], rotated, spec)

    count, inputs = len(saved), arrays + weights
    return record_as(results, differentiate, saved + inputs, inputs)


def need_gradients(arrays: Tensors) -> bool:
    """Return whether all arrays require gradients that autograd records."""
    recorded = torch.is_grad_enabled()
    return recorded and all(type(x) in PLAIN and x.requires_grad for x in arrays)


def copy_positions(positions: Any, double: bool = False) -> Tensors | None:
    """Return positions to save, which the caller may overwrite; None for what is not saved here.

    Those of floats as their whole and fractional parts, which the operator saves.
    """
    kind = type(positions)
    if positions is None:
        return ()
    if kind is torch.Tensor:
        return _copy_tensor(positions, double)
    if kind is np.ndarray:
        copied = positions.astype(np.int64) if positions.dtype in (np.int32, np.int64) else None
        return None if copied is None else (torch.from_numpy(copied),)
    if kind not in (int, list, tuple, range):
        return None
    tensor = torch.tensor([positions] if kind is int else list(positions), device="cpu")
    return (tensor,) if tensor.dtype is torch.int64 else None


def _copy_tensor(positions: torch.Tensor, double: bool) -> Tensors | None:
    if not is_plain(positions) or positions.requires_grad:
        return None
    if positions.dtype in _INTEGERS:
        return (positions.to(torch.int64, copy=True),)
    if positions.dtype not in (torch.float32, torch.float64):
        return None
    floor = positions.floor()
    part = (positions - floor).to(torch.float64 if double else torch.float32)
    return floor.to(torch.int64), part


def rotate_by_rope(*call: Any) -> Any:
    """Rotate as the entry does, and record it; None to leave that to the slow path."""
    rope, q, k, positions, k_positions, axes, _, norm, _, _, how = call
    arrays = (q,) if how & ONE else (q, k)
    if norm is not None or k_positions is not None or not need_gradients(arrays):
        if not all(type(x) in PLAIN for x in arrays):
            return None
        both = not how & ONE
        apart = both and norm is None and q.requires_grad != k.requires_grad
        if both and (k_positions is not None or apart):
            return _rotate_apart(call) if _is_pair(q, k, axes, k_positions is not None) else None
        if norm is None:
            return None
    saved = copy_positions(positions, q.dtype is torch.float64)
    if saved is None:
        return None
    results = entry.native_rotate_by_rope(*call[:-1], how | RECORDED)
    if results is None:
        return None

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return transpose_rope(rope, grads, saved, axes, how)

    results = (results,) if how & ONE else results
    if norm is None:
        results = record(results, rotate_back, saved, arrays)
    else:
        spec, weights = _describe_norm(norm, arrays, *slice_of(rope, q.shape[-1]))
        results = record_norm(results, rotate_back, saved, arrays, weights, spec)
    return results[0] if how & ONE else results


def _is_pair(q: torch.Tensor, k: torch.Tensor, axes: Any, own_tokens: bool) -> bool:
    """Return whether q and k differ only where they may; the slow path says where else."""
    where = parse_axes(axes, q.ndim, "q")
    free = (where.heads, where.tokens) if own_tokens else (where.heads,)
    same = [i in free or n == m for i, (n, m) in enumerate(zip(q.shape, k.shape, strict=False))]
    return q.ndim == k.ndim and all(same)


def _rotate_apart(call: tuple[Any, ...]) -> Any:
    """Rotate q and k in calls of their own: all results of one require a gradient, or none."""
    rope, q, k, positions, k_positions, axes, out, norm, *rest, how = call
    backend, results, norms = require_backend(q, "q"), [], (norm, norm)
    if norm is not None:
        if type(norm) is not QKNorm or not _are_alike(norm.q_weight, norm.k_weight):
            return None
        norms = norm, replace(norm, q_weight=norm.k_weight)
    own = positions, positions if k_positions is None else k_positions
    for x, given, of_x in zip((q, k), own, norms, strict=True):
        result = backend.rotate_by_rope(
            rope, x, None, given, None, axes, out, of_x, *rest, how | ONE
        )
        if result is None:
            return None
        results.append(result)
    return tuple(results)


def _are_alike(weight: Any, other: Any) -> bool:
    return weight is other or (
        isinstance(weight, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and weight.shape == other.shape
    )


def _describe_norm(
    norm: Any, arrays: Tensors, rotary_dim: int, rotary_offset: int
) -> tuple[RotationSpec, Tensors]:
    """Return a rotation, as far as the derivative of its norm reads it, and the weights."""
    norm = read_norm(norm)
    weights = describe_norm(norm, len(arrays))[1]
    over_slice = bool(weights) and weights[0].shape[0] != arrays[0].shape[-1]
    spec = NormSpec(norm.eps, norm.offset, False, over_slice)
    axes: Any = None
    return RotationSpec(axes, "half", rotary_dim, rotary_offset, False, spec), weights


def transpose_rope(rope: Any, grads: Tensors, saved: Tensors, axes: Any, how: int) -> Tensors:
    """Return gradients rotated back, by the same positions and attention factor."""
    positions = saved[0] if saved else None
    if len(saved) > 1:  # exact, as its fraction has no more bits than before
        positions = saved[0].to(torch.float64) + saved[1]
    one = len(grads) == 1
    flags = (how | ONE if one else how) ^ TRANSPOSED
    call = rope, grads[0], grads[-1], positions, None, axes, None, None, None, None, flags
    results = require_backend(grads[0], "gradients").rotate_by_rope(*call)
    if results is not None:
        return (results,) if one else results
    back = builders["rotate_by_rope"](rope, grads, positions, axes, None, None, how ^ TRANSPOSED)
    return choose.run(back)


def rotate_by_tables(*call: Any) -> Any:
    """Do the same by cos and sin, of which no gradient is recorded."""
    slice_, (q, k, cos, sin, axes, _, norm, _, _, how) = call[:4], call[4:]
    arrays = (q,) if how & ONE else (q, k)
    if not all(type(x) in PLAIN for x in arrays):
        return None
    if norm is None and not need_gradients(arrays):
        return None
    if not all(type(t) is torch.Tensor and t.dtype in FLOATS for t in (cos, sin)):
        return None
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    tables = cos.to(dtype), sin.to(dtype)
    if not are_constant(tables, q):
        return None
    results = entry.native_rotate_by_tables(
        *slice_, q, k, *tables, axes, None, norm, None, None, how | RECORDED
    )
    if results is None:
        return None

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return transpose_tables(slice_, grads, saved, axes, how)

    results = (results,) if how & ONE else results
    if norm is None:
        results = record(results, rotate_back, tables, arrays)
    else:
        pairs = cos.shape[-1] // (2 if slice_[3] else 1)
        offset = slice_[2] + q.shape[-1] * (slice_[2] < 0)
        spec, weights = _describe_norm(norm, arrays, 2 * pairs, offset)
        results = record_norm(results, rotate_back, tables, arrays, weights, spec)
    return results[0] if how & ONE else results


def transpose_tables(
    slice_: tuple[Any, ...], grads: Tensors, tables: Tensors, axes: Any, how: int
) -> Tensors:
    """Return gradients rotated back by the same cos and sin."""
    one = len(grads) == 1
    flags = (how | ONE if one else how) ^ TRANSPOSED
    call = *slice_, grads[0], grads[-1], *tables, axes, None, None, None, None, flags
    results = require_backend(grads[0], "gradients").rotate_by_tables(*call)
    if results is not None:
        return (results,) if one else results
    pairs = tuple([one_per_pair(t, COLUMN_FORMS[slice_[3]]) for t in tables])
    flags = (how ^ TRANSPOSED) & ~CHECK_COLUMNS  # they fitted the arrays
    build = builders["rotate_by_tables"]
    return choose.run(build(slice_, grads, pairs, axes, None, None, flags))


def are_constant(tables: tuple[Any, Any], x: torch.Tensor) -> bool:
    """Return whether tables are tensors in the dtype of angles of x that require no gradient."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    return all(type(t) is torch.Tensor and t.dtype is dtype and not t.requires_grad for t in tables)
