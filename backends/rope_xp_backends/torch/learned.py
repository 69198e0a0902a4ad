"""Derivatives of rotations by products of positions and frequencies that are learned.

The derivative of a pair by its angle is the pair a quarter turn on, so that of an angle is

    sum over heads of dy2 y1 - dy1 y2

for the rotated pair (y1, y2) and its gradient.
"""

import torch

from rope_xp._core.call import Call, CosSin, RotationSpec
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.how import GIVEN_COLUMNS, ONE, TRANSPOSED, builders

from . import private, recorded
from .library import PLAIN, Tensors


def record_product(
    call: Call, positions: torch.Tensor, frequencies: torch.Tensor
) -> Tensors | None:
    """See :meth:`rope_xp.backend.Backend.record_product`."""
    source, arrays = call.angles[0], call.arrays
    traced = torch.compiler.is_compiling() or private.are_transforms_active()
    if traced or private.is_forward_mode() or len(call.angles) > 1 or call.out is not None:
        return None
    if not isinstance(source, CosSin) or type(positions) not in PLAIN:
        return None
    if not all(type(x) in PLAIN for x in (*arrays, frequencies)):
        return None
    with torch.no_grad():
        results = tuple([_rotate(x, source, call.spec, 0) for x in arrays])
    spec, learns = call.spec, positions.requires_grad
    places = positions if learns else positions.detach().clone()  # which the caller may overwrite

    def differentiate(grads: recorded.Grads, saved: Tensors) -> recorded.Grads:
        cos, sin, *operands, p, f = saved
        inputs = (*operands, f, p) if learns else (*operands, f)
        if all(grad is None for grad in grads):
            return (None,) * len(inputs)
        if torch.is_grad_enabled():  # to be differentiated once more
            return _differentiate_plainly(grads, (*operands, p, f), inputs, spec)
        d_arrays, d_angles = _differentiate(grads, tuple(operands), CosSin(cos, sin), spec, f)
        rows = range(d_angles.ndim - 2)
        p_rows = p.to(d_angles.dtype)[..., None, None]
        d_f = torch.stack([(row * d_angles).sum(tuple(rows)) for row in p_rows])
        d_p: Tensors = ()
        if learns:
            by_row = [(d_angles * row).sum((-1, -2)) for row in f.reshape(len(f), -1, f.shape[-1])]
            d_p = (torch.stack([d.sum_to_size(p.shape[1:]) for d in by_row]).to(p.dtype),)
        return *d_arrays, d_f.reshape(f.shape).to(f.dtype), *d_p

    inputs = (*arrays, frequencies, positions) if learns else (*arrays, frequencies)
    saved = source.cos, source.sin, *arrays, places, frequencies
    return recorded.record_as(results, differentiate, saved, inputs)


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
    if f.ndim == 2:  # of one component, without heads
        p, f = p[0], f[0]
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
