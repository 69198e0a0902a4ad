"""Rotations that autograd records outside of transforms: results that exist, and the way back.

The entry and the operator save the same tensors in the same order, as activation checkpointing may
compute a layer by one and then by the other.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._dispatch import choose
from rope_xp._dispatch.find import require_backend
from rope_xp._dispatch.how import CHECK_COLUMNS, ONE, RECORDED, TRANSPOSED, builders

from . import entry
from .library import PLAIN, Tensors, is_plain

RotateBack: TypeAlias = Callable[[Tensors, Tensors], Tensors]
"""Returns gradients, rotated back by saved positions, or cos and sin."""
_INTEGERS = (torch.int64, torch.int32)


class _Record(torch.autograd.Function):
    """A rotation is linear and its transpose is its inverse, so nothing but angles is saved."""

    @staticmethod
    def forward(
        ctx: Any,
        results: Tensors,
        rotate_back: RotateBack,
        saved: Tensors,
        *_arrays: torch.Tensor,
    ) -> Tensors:
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.rotate_back = rotate_back
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        used = tuple([g for g in grads if g is not None])
        rotated = iter(ctx.rotate_back(used, ctx.saved_tensors) if used else ())
        return None, None, None, *[None if g is None else next(rotated) for g in grads]


def record(results: Tensors, rotate_back: RotateBack, saved: Tensors, arrays: Tensors) -> Any:
    """Return results as autograd records them: those of arrays, all of which require gradients."""
    recorded = _Record.apply(results, rotate_back, saved, *arrays)  # type: ignore[no-untyped-call]  # of torch
    return tuple(recorded)


def need_gradients(arrays: Tensors) -> bool:
    """Return whether all arrays require gradients that autograd records."""
    recorded = torch.is_grad_enabled()
    return recorded and all(type(x) in PLAIN and x.requires_grad for x in arrays)


def copy_positions(positions: Any) -> Tensors | None:
    """Return positions to save, which the caller may overwrite; None for what is not saved here."""
    if positions is None:
        return ()
    if type(positions) is not torch.Tensor or positions.dtype not in _INTEGERS:
        return None
    return (positions.to(torch.int64, copy=True),) if is_plain(positions) else None


def rotate_by_rope(rope: Any, q: Any, k: Any, positions: Any, axes: Any, how: int) -> Any:
    """Rotate as the entry does, and record it; None to leave that to the slow path."""
    arrays = (q,) if how & ONE else (q, k)
    saved = copy_positions(positions) if need_gradients(arrays) else None
    if saved is None:
        return None
    call = rope, q, k, positions, None, axes, None, None, None, None, how | RECORDED
    results = entry.native_rotate_by_rope(*call)
    if results is None:
        return None

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return transpose_rope(rope, grads, saved, axes, how)

    results = record((results,) if how & ONE else results, rotate_back, saved, arrays)
    return results[0] if how & ONE else results


def transpose_rope(rope: Any, grads: Tensors, saved: Tensors, axes: Any, how: int) -> Tensors:
    """Return gradients rotated back, by the same positions and attention factor."""
    positions = saved[0] if saved else None
    one = len(grads) == 1
    flags = (how | ONE if one else how) ^ TRANSPOSED
    call = rope, grads[0], grads[-1], positions, None, axes, None, None, None, None, flags
    results = require_backend(grads[0], "gradients").rotate_by_rope(*call)
    if results is not None:
        return (results,) if one else results
    back = builders["rotate_by_rope"](rope, grads, positions, axes, None, None, how ^ TRANSPOSED)
    return choose.run(back)


def rotate_by_tables(
    slice_: tuple[Any, ...], q: Any, k: Any, cos: Any, sin: Any, axes: Any, how: int
) -> Any:
    """Do the same by cos and sin, of which no gradient is recorded."""
    arrays = (q,) if how & ONE else (q, k)
    if not (need_gradients(arrays) and are_constant((cos, sin), q)):
        return None
    results = entry.native_rotate_by_tables(
        *slice_, q, k, cos, sin, axes, None, None, None, None, how | RECORDED
    )
    if results is None:
        return None

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return transpose_tables(slice_, grads, saved, axes, how)

    results = record((results,) if how & ONE else results, rotate_back, (cos, sin), arrays)
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
