"""Derivatives of what is learned: products of positions and frequencies, and steps of angles.

A rotation keeps areas, so the derivative of an angle is that of a turn of the pair (x1, x2) by
itself, given the gradient (d1, d2) that is rotated back:

    sum over heads of x1 d2 - x2 d1
"""

from typing import Any

import torch

from rope_xp._arguments.axes import parse_axes
from rope_xp._core.call import Axes
from rope_xp._dispatch import choose
from rope_xp._dispatch.how import GIVEN_COLUMNS, builders

from . import entry, recorded
from .library import PLAIN, Tensors


def rotate_by_product(
    q: Any, k: Any, positions: Any, frequencies: Any, layout: Any, axes: Any
) -> Tensors | None:
    """Rotate by a product of which a factor is learned; None to leave that to plain operations."""
    if not all(type(x) in PLAIN for x in (q, k, frequencies)) or q.dtype is not k.dtype:
        return None
    slice_ = layout, 0, 0, 0
    with torch.no_grad():
        table = entry.native_multiply_angles(positions, frequencies, q, axes)
        if table is None:
            return None
        tables = tuple(torch.chunk(table, 2, -1))
        call = *slice_, q, k, *tables, axes, None, None, None, None, 0
        results = entry.native_rotate_by_tables(*call)
    if results is None:
        return None
    where = parse_axes(axes, q.ndim, "q")
    learns = type(positions) in PLAIN and positions.requires_grad
    # A copy of what the caller may overwrite.
    places = positions if learns else torch.as_tensor(positions).detach().clone()

    def differentiate(grads: recorded.Grads, saved: Tensors) -> recorded.Grads:
        cos, sin, *operands, p, f = saved
        inputs = (*operands, f, p) if learns else (*operands, f)
        used = [i for i, grad in enumerate(grads) if grad is not None]
        if not used:
            return (None,) * len(inputs)
        d_ys: Any = tuple([grads[i] for i in used])
        if torch.is_grad_enabled():  # to be differentiated once more
            call = builders["apply_frequencies"](*operands, p, f, layout, where.names)
            results = choose.run(call)
            options = {"create_graph": True, "allow_unused": True}
            return torch.autograd.grad([results[i] for i in used], inputs, d_ys, **options)
        rotated = recorded.transpose(slice_, where.names, GIVEN_COLUMNS, d_ys, (cos, sin))
        d_xs: dict[int, torch.Tensor] = dict(zip(used, rotated, strict=True))
        heads = f.shape[-2] if f.ndim > 1 else 1
        d_angles: Any = sum(
            _turn(operands[i], d_x, cos.shape[-1], layout, where, heads) for i, d_x in d_xs.items()
        )
        d_p, d_f = _differentiate_product(p, f, d_angles, learns)
        return d_xs.get(0), d_xs.get(1), d_f, *d_p

    inputs = (q, k, frequencies, positions) if learns else (q, k, frequencies)
    saved = *tables, q, k, places, frequencies
    return tuple(recorded.Record.apply(results, differentiate, saved, *inputs))


def accumulate_angles(
    steps: Any, axis: Any, start: Any, cu_seqlens: Any, return_state: bool
) -> Any:
    """Sum steps that learn, whose derivative is a sum back; None to leave that to operations."""
    if type(steps) not in PLAIN or not steps.requires_grad or cu_seqlens is not None:
        return None
    with torch.no_grad():
        summed = entry.native_accumulate_angles(steps, axis, start, None, return_state)
    if summed is None:
        return None

    def differentiate(grads: recorded.Grads, _saved: Tensors) -> recorded.Grads:
        (grad,) = grads
        return (None if grad is None else grad.flip(axis).cumsum(axis).flip(axis),)

    angles, *state = summed if return_state else (summed,)
    (angles,) = recorded.Record.apply((angles,), differentiate, (), steps)
    return (angles, *state) if return_state else angles


def _turn(
    x: torch.Tensor, d_x: torch.Tensor, pairs: int, layout: str, axes: Axes, heads: int
) -> torch.Tensor:
    """Return the gradient of angles, (batch..., tokens, heads, r/2)."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    halves = []
    for t in (x, d_x):
        y = t[..., : 2 * pairs].to(dtype)
        halves += (
            [y[..., :pairs], y[..., pairs:]] if layout == "half" else [y[..., ::2], y[..., 1::2]]
        )
    x1, x2, d1, d2 = halves
    order = (*axes.batch_tokens, *(() if axes.heads is None else (axes.heads,)), x.ndim - 1)
    turned = (x1 * d2 - x2 * d1).permute(order)
    rows = turned.shape[: len(axes.batch_tokens)]
    return turned.reshape(*rows, heads, -1, pairs).sum(-2)


def _differentiate_product(
    p: torch.Tensor, f: torch.Tensor, d_angles: torch.Tensor, learns: bool
) -> tuple[Tensors, torch.Tensor]:
    """Return the gradients of positions, if they learn, and of frequencies."""
    by_component = f.ndim == 3
    rows = p if by_component else p[None]
    rows = rows[..., None] if rows.ndim == 1 else rows
    summed = tuple(range(d_angles.ndim - 2))
    wide = rows.to(d_angles.dtype)[..., None, None]
    d_f = torch.stack([(row * d_angles).sum(summed) for row in wide]).reshape(f.shape).to(f.dtype)
    if not learns:
        return (), d_f
    by_row = [(d_angles * row).sum((-1, -2)) for row in (f if by_component else f[None])]
    d_p = torch.stack([d.sum_to_size(rows.shape[1:]) for d in by_row])
    return (d_p.reshape(p.shape).to(p.dtype),), d_f
