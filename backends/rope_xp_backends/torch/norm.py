"""RMSNorm and rotation of tensors by one kernel, and their derivative in plain operations."""

from collections.abc import Callable
from typing import Any

import torch

from rope_xp._core.call import Call, RotationSpec
from rope_xp._core.norm import QKNorm
from rope_xp._rotation import portable

from .library import Tensors
from .op import apply_op
from .op_args import OpArgs, build_op_args

CHUNK = 1 << 14
"""Elements differentiated at once: they stay in cache, and torch starts no threads for so few."""


def run(call: Call, rotate: Callable[..., Tensors], **support: bool) -> Tensors:
    """Return the arrays of a call, normalized and rotated by ``rotate``."""
    results: Tensors = ()
    for i, (arrays, out, source) in enumerate(call.groups(call.out or (), one_dtype=True)):
        norm = call.norm.select(i, len(arrays))  # type: ignore[union-attr]  # there is one
        op_args = build_op_args(portable.for_kernel(call, source, **support), call.spec)
        weights = norm.weights[: len(arrays)]
        operands = [x for x in (*arrays, *weights) if x is not None]
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in operands)):
            results += rotate(out or None, arrays, op_args, norm)
        else:
            op_args = op_args.with_copied_positions(arrays[0])
            plain_args = rotate, norm, op_args.with_angle_inputs(()), len(arrays)
            tensors = *arrays, *weights, *op_args.angle_inputs
            results += tuple(_Rotate.apply(*plain_args, *tensors))  # type: ignore[no-untyped-call]  # in torch
    return call.out or results


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rotate: Callable[..., Tensors],
        norm: QKNorm,
        op_args: OpArgs,
        n: int,
        *tensors: torch.Tensor,
    ) -> Tensors:
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.norm, ctx.op_args, ctx.n = norm.select(n, 0), op_args, n  # without weights
        return rotate(None, tensors[:n], op_args.with_angle_inputs(tensors[2 * n :]), norm)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        n, saved = ctx.n, ctx.saved_tensors
        op_args = ctx.op_args.with_angle_inputs(saved[2 * n :])
        inverse = op_args._replace(inverse=not op_args.inverse)
        d_tensors: list[Any] = [None] * len(saved)
        for i, grad in enumerate(grads):
            if grad is not None:
                (d_y,) = apply_op((grad,), inverse)
                gradients = _differentiate(saved[i], saved[n + i], d_y, ctx.norm, op_args.spec)
                d_tensors[i], d_tensors[n + i] = gradients
        return *(None,) * 4, *d_tensors


def _differentiate(
    x: torch.Tensor, weight: Any, grad: torch.Tensor, norm: QKNorm, spec: RotationSpec
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x and of its weight, from that of the normalized array."""
    axis = max(range(x.ndim - 1), key=lambda i: x.shape[i])
    length = x.shape[axis]
    step = length if torch.is_grad_enabled() else max(CHUNK * length // max(x.numel(), 1), 1)
    chunks = zip(torch.split(x, step, axis), torch.split(grad, step, axis), strict=True)
    parts = [_differentiate_chunk(y, g, weight, norm, spec) for y, g in chunks]
    d_x = torch.cat([part[0] for part in parts], axis)
    return d_x, None if weight is None else sum(part[1] for part in parts).to(weight.dtype)


# n = x * f; d_x = f * (w * g - n * mean(w * g * n)); d_w = sum(g * n)
def _differentiate_chunk(
    x: torch.Tensor, grad: torch.Tensor, weight: Any, norm: QKNorm, spec: RotationSpec
) -> tuple[torch.Tensor, Any]:
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    first, end = 0, x.shape[-1]
    if weight is not None and weight.shape[-1] != end:
        first, end = spec.rotary_offset, spec.rotary_offset + spec.rotary_dim
    y, g = x[..., first:end].to(dtype), grad[..., first:end].to(dtype)
    factor = torch.rsqrt((y * y).mean(-1, keepdim=True) + norm.eps)
    y, d_weight = y * factor, None
    if weight is not None:
        d_weight = (g * y).sum(tuple(range(x.ndim - 1)))
        g = g * (weight.to(dtype) + norm.offset)
    d_x = (factor * (g - y * (g * y).mean(-1, keepdim=True))).to(x.dtype)
    rest = grad[..., :first], grad[..., end:]
    return torch.cat([rest[0], d_x, rest[1]], -1) if end - first < x.shape[-1] else d_x, d_weight
