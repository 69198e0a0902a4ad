"""Rotations that autograd records outside of transforms: results that exist, and the way back.

The entry and the operator save the same tensors in the same order, as activation checkpointing may
compute a layer by one and then by the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.call import NormSpec, RotationSpec
from rope_xp._core.slices import slice_of
from rope_xp._dispatch import choose
from rope_xp._dispatch.find import require_backend
from rope_xp._dispatch.how import CHECK_COLUMNS, ONE, RECORDED, TRANSPOSED, build_call
from rope_xp.norm import QKNorm, describe_norm, read_norm

from . import derivative, entry
from .library import PLAIN, Tensors, is_plain

RotateBack: TypeAlias = Callable[[Tensors, Tensors], Tensors]
"""Returns gradients, rotated back by saved positions, or cos and sin."""
Grads: TypeAlias = tuple[torch.Tensor | None, ...]
_INTEGERS = (torch.int64, torch.int32)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Record(torch.autograd.Function):
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


def record(
    results: Tensors,
    rotate_back: RotateBack,
    saved: Tensors,
    arrays: Tensors,
    weights: Tensors = (),
    spec: RotationSpec | None = None,
) -> Tensors:
    """Return results as autograd records them.

    A rotation is linear and its transpose is its inverse, so nothing but angles is saved, and all
    arrays require gradients. With a norm, in ``spec``, arrays and weights are saved too, and some
    of them require gradients.
    """
    if spec is None:
        return tuple(Record.apply(results, partial(_differentiate, rotate_back), saved, *arrays))
    function = partial(_differentiate_norm, rotate_back, len(saved), spec)
    return tuple(Record.apply(results, function, (*saved, *arrays, *weights), *arrays, *weights))


def _differentiate(rotate_back: RotateBack, grads: Grads, saved: Tensors) -> Grads:
    used = tuple([g for g in grads if g is not None])
    rotated = iter(rotate_back(used, saved) if used else ())
    return tuple([None if g is None else next(rotated) for g in grads])


def _differentiate_norm(
    rotate_back: RotateBack, count: int, spec: RotationSpec, grads: Grads, saved: Tensors
) -> Grads:
    n, operands = len(grads), saved[count:]
    pairs = zip(grads, operands, strict=False)
    filled = tuple([torch.zeros_like(x) if g is None else g for g, x in pairs])
    rotated = rotate_back(filled, saved[:count])
    return derivative.differentiate(operands[:n], operands[n:], rotated, spec)


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
    whole = positions.trunc()
    part = (positions - whole).to(torch.float64 if double else torch.float32)
    return whole.to(torch.int64), part


def rotate_by_rope(*call: Any) -> Any:
    """Rotate as the entry does, and record it; None to leave that to the slow path."""
    _, q, k, positions, k_positions, _, _, norm, _, _, how = call
    arrays = (q,) if how & ONE else (q, k)
    if not _can_record(arrays, norm):
        return None
    own = (positions,) if k_positions is None else (positions, k_positions)
    saved = [copy_positions(p, q.dtype is torch.float64) for p in own]
    if None in saved:
        return None
    results = entry.native_rotate_by_rope(*call[:-1], how | RECORDED)
    return None if results is None else _record_call(results, call, 1, saved, arrays)


def rotate_by_tables(*call: Any) -> Any:
    """Do the same by cos and sin, of which no gradient is recorded."""
    q, k, cos, sin, _, _, norm, *_, how = call[4:]
    arrays = (q,) if how & ONE else (q, k)
    if not _can_record(arrays, norm):
        return None
    if not all(type(t) is torch.Tensor and t.dtype in _FLOATS for t in (cos, sin)):
        return None
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    tables = cos.to(dtype), sin.to(dtype)
    if any(t.requires_grad for t in tables):
        return None
    results = entry.native_rotate_by_tables(*call[:6], *tables, *call[8:-1], how | RECORDED)
    return None if results is None else _record_call(results, call, 4, [tables], arrays)


def _can_record(arrays: Tensors, norm: Any) -> bool:
    return all(type(x) in PLAIN for x in arrays) and (
        norm is not None or any(x.requires_grad for x in arrays)
    )


def _record_call(
    results: Any, call: tuple[Any, ...], place: int, saved: list[Any], arrays: Tensors
) -> Any:
    """Return the results of a call, with q at ``place``, as autograd records them.

    ``saved`` are the angles of all arrays, or of each its own.
    """
    head, (axes, _, norm, *_, how) = call[:place], call[place + 4 :]
    back, spec = partial(transpose, head, axes, how), None
    weights: Tensors = ()
    if norm is not None:
        spec, weights = _describe_norm(read_norm(norm), head, saved[0], arrays)
    if how & ONE:
        return record((results,), back, saved[0], arrays, weights, spec)[0]
    if len(saved) == 1 and (norm is not None or arrays[0].requires_grad == arrays[1].requires_grad):
        return record(results, back, saved[0], arrays, weights, spec)
    # All results of one function would require a gradient.
    q, k = slice(0, 1), slice(1, 2)
    return (
        *record(results[q], back, saved[0], arrays[q], weights[q], spec),
        *record(results[k], back, saved[-1], arrays[k], weights[k], spec),
    )


def _describe_norm(
    norm: QKNorm, head: tuple[Any, ...], saved: Tensors, arrays: Tensors
) -> tuple[RotationSpec, Tensors]:
    """Return a rotation, as far as the derivative of its norm reads it, and the weights."""
    n, weights = arrays[0].shape[-1], describe_norm(norm, len(arrays))[1]
    if len(head) == 1:
        rotary_dim, offset = slice_of(head[0], n)
    else:
        rotary_dim, offset = saved[0].shape[-1] * (1 if head[3] else 2), head[2] % n
    over_slice = bool(weights) and weights[0].shape[0] != n
    axes: Any = None
    spec = NormSpec(norm.eps, norm.offset, False, over_slice)
    return RotationSpec(axes, "half", rotary_dim, offset, False, spec), weights


def transpose(
    head: tuple[Any, ...], axes: Any, how: int, grads: Tensors, saved: Tensors
) -> Tensors:
    """Return gradients rotated back, by the saved angles and the same attention factor.

    ``head`` is what calls have before q: a rope, or the slice of tables and their form.
    """
    name, angles, one = "rotate_by_tables", saved, len(grads) == 1
    if len(head) == 1:
        name, angles = "rotate_by_rope", (saved[0] if saved else None, None)  # type: ignore[assignment]  # of a call
        if len(saved) > 1:  # exact, as its fraction has no more bits than before
            angles = saved[0].to(torch.float64) + saved[1], None  # type: ignore[assignment]  # of a call
    flags = (how | ONE if one else how) ^ TRANSPOSED
    call = *head, grads[0], grads[-1], *angles, axes, None, None, None, None, flags
    results = getattr(require_backend(grads[0], "gradients"), name)(*call)
    if results is not None:
        return (results,) if one else results
    if len(head) > 1:
        angles = tuple([one_per_pair(t, COLUMN_FORMS[head[3]]) for t in saved])
    flags = (how ^ TRANSPOSED) & ~CHECK_COLUMNS  # they fitted the arrays
    return choose.run(build_call(head, grads, angles, axes, None, None, flags))
