"""Derivatives of what is learned: products of positions and frequencies, and steps of angles.

For a product, the derivative of a pair by its angle is the pair a quarter turn on, so that of an
angle is

    sum over heads of dy2 y1 - dy1 y2

for the rotated pair (y1, y2) and its gradient.
"""

from typing import Any

import torch

from rope_xp._arguments.axes import parse_axes
from rope_xp._core.call import CosSin, RotationSpec
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.how import GIVEN_COLUMNS, ONE, TRANSPOSED, builders

from . import entry, recorded
from .library import PLAIN, Tensors


def rotate_by_product(
    q: Any, k: Any, positions: Any, frequencies: Any, layout: Any, axes: Any
) -> Tensors | None:
    """Rotate by a product of which a factor is learned; None to leave that to plain operations."""
    arrays = q, k
    if not all(type(x) in PLAIN for x in (q, k, frequencies)) or q.dtype is not k.dtype:
        return None
    with torch.no_grad():
        table = entry.native_multiply_angles(positions, frequencies, q, axes)
        if table is None:
            return None
        tables = tuple(torch.chunk(table, 2, -1))
        rotate = entry.native_rotate_by_tables
        results = rotate(layout, 0, 0, 0, q, k, *tables, axes, None, None, None, None, 0)
    if results is None:
        return None
    is_tensor = type(positions) in PLAIN
    learns = is_tensor and positions.requires_grad
    spec = RotationSpec(parse_axes(axes, q.ndim, "q"), layout, 2 * tables[0].shape[-1], 0, False)
    # A copy of what the caller may overwrite.
    places = positions if learns else torch.as_tensor(positions).detach().clone()
    count = frequencies.shape[0] if frequencies.ndim == 3 else 0
    shape = frequencies.shape

    def differentiate(grads: recorded.Grads, saved: Tensors) -> recorded.Grads:
        cos, sin, *operands, p, f = saved
        inputs = (*operands, f, p) if learns else (*operands, f)
        if all(grad is None for grad in grads):
            return (None,) * len(inputs)
        if torch.is_grad_enabled():  # to be differentiated once more
            return _differentiate_plainly(grads, (*operands, p, f), inputs, spec)
        p, f = (p, f) if count else (p[None], f[None])
        p = p[..., None] if p.ndim == 1 else p
        d_arrays, d_angles = _differentiate(grads, tuple(operands), CosSin(cos, sin), spec, f)
        rows = range(d_angles.ndim - 2)
        p_rows = p.to(d_angles.dtype)[..., None, None]
        d_f = torch.stack([(row * d_angles).sum(tuple(rows)) for row in p_rows])
        d_p: Tensors = ()
        if learns:
            by_row = [(d_angles * row).sum((-1, -2)) for row in f.reshape(len(f), -1, f.shape[-1])]
            summed = torch.stack([d.sum_to_size(p.shape[1:]) for d in by_row]).to(p.dtype)
            d_p = (summed.reshape(positions.shape),)
        return *d_arrays, d_f.reshape(shape).to(f.dtype), *d_p

    inputs = (*arrays, frequencies, positions) if learns else (*arrays, frequencies)
    saved = *tables, *arrays, places, frequencies
    return recorded.record_as(results, differentiate, saved, inputs)


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
    (angles,) = recorded.record_as((angles,), differentiate, (), (steps,))
    return (angles, *state) if return_state else angles


def _rotate(x: torch.Tensor, source: CosSin, spec: RotationSpec, flags: int) -> torch.Tensor:
    slice_ = spec.layout, spec.rotary_dim, spec.rotary_offset, 0
    flags |= ONE | GIVEN_COLUMNS
    tables = source.cos, source.sin
    call = *slice_, x, None, *tables, spec.axes.names, None, None, None, None, flags
    result: torch.Tensor | None = find.require_backend(x, "x").rotate_by_tables(*call)
    if result is not None:
        return result
    build = builders["rotate_by_tables"]
    rotated: torch.Tensor
    (rotated,) = choose.run(build(slice_, (x,), tables, spec.axes.names, None, None, flags))
    return rotated


def _differentiate(
    grads: recorded.Grads, arrays: Tensors, source: CosSin, spec: RotationSpec, f: torch.Tensor
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """Return gradients of arrays, and that of angles, (batch..., tokens, heads, r/2)."""
    dtype = torch.float64 if arrays[0].dtype is torch.float64 else torch.float32
    axes, heads = spec.axes, f.shape[-2] if f.ndim == 3 else 1
    order = (*axes.batch_tokens, *(() if axes.heads is None else (axes.heads,)), -1)
    d_arrays: list[torch.Tensor | None] = []
    d_angles = torch.zeros((), dtype=dtype, device=arrays[0].device)
    for x, d_y in zip(arrays, grads, strict=True):
        if d_y is None:
            d_arrays.append(None)
            continue
        d_arrays.append(_rotate(d_y, source, spec, TRANSPOSED))
        y1, y2 = _split_pairs(_rotate(x, source, spec, 0), spec, dtype)
        d1, d2 = _split_pairs(d_y, spec, dtype)
        turned = (d2 * y1 - d1 * y2).permute([i % x.ndim for i in order])
        rows = turned.shape[: len(axes.batch_tokens)]
        d_angles = d_angles + turned.reshape(*rows, heads, -1, turned.shape[-1]).sum(-2)
    return d_arrays, d_angles


def _split_pairs(x: torch.Tensor, spec: RotationSpec, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return first and second components of pairs as a rotation writes them."""
    part = x[..., : spec.rotary_dim].to(dtype)
    if spec.layout == "interleaved":
        return [part[..., 0::2], part[..., 1::2]]
    return [*torch.chunk(part, 2, -1)]


def _differentiate_plainly(
    grads: recorded.Grads, arguments: Tensors, inputs: Tensors, spec: RotationSpec
) -> recorded.Grads:
    """Return gradients that have derivatives, by operations that have them."""
    q, k, p, f = arguments
    results = choose.run(builders["apply_frequencies"](q, k, p, f, spec.layout, spec.axes.names))
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None]
    found: recorded.Grads = torch.autograd.grad(
        [y for y, _ in pairs],
        inputs,
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    return found
