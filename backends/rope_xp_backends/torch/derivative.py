"""The derivative of RMSNorm."""

from typing import Any

import torch

from rope_xp._core.call import RotationSpec

from .library import Tensors

CHUNK = 1 << 18
"""Elements differentiated at once, so that what is computed in between stays in cache."""


def differentiate(
    arrays: Tensors, weights: Tensors, grads: Tensors, spec: RotationSpec
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of arrays and of weights, from those of the normalized arrays."""
    d_arrays, d_weights = [], []
    at_once = torch.is_grad_enabled() or torch.compiler.is_compiling()
    for x, weight, grad in zip(arrays, weights or (None,) * len(arrays), grads, strict=True):
        axis, chunks = 0, [(x, grad)]
        if not at_once and x.numel() > CHUNK:
            axis = x.shape[:-1].index(max(x.shape[:-1]))
            step = max(CHUNK * x.shape[axis] // x.numel(), 1)
            chunks = [*zip(x.split(step, axis), grad.split(step, axis), strict=True)]
        parts = [_differentiate_chunk(*chunk, weight, spec) for chunk in chunks]
        d_arrays.append(torch.cat([part[0] for part in parts], axis))
        if weight is not None:
            d_weights.append(sum(part[1] for part in parts).to(weight.dtype))
    return *d_arrays, *d_weights


# n = x * f; d_x = f * (w * g - n * mean(w * g * n)); d_w = sum(g * n)
def _differentiate_chunk(
    x: torch.Tensor, grad: torch.Tensor, weight: Any, spec: RotationSpec
) -> tuple[torch.Tensor, Any]:
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    norm: Any = spec.norm
    first, end = spec.rotary_offset, spec.rotary_offset + spec.rotary_dim
    y, g = x, grad  # batched gradients cannot be sliced as a whole
    if norm.over_slice:
        y, g = x[..., first:end], grad[..., first:end]
    y, g = y.to(dtype), g.to(dtype)
    factor = torch.rsqrt((y * y).mean(-1, keepdim=True) + norm.eps)
    y, d_weight = y * factor, None
    if weight is not None:
        d_weight = (g * y).sum(tuple(range(x.ndim - 1)))
        g = g * (weight.to(dtype) + norm.weight_offset)
    d_x = (factor * (g - y * (g * y).mean(-1, keepdim=True))).to(x.dtype)
    if norm.over_slice:
        d_x = torch.cat([grad[..., :first], d_x, grad[..., end:]], -1)
    return d_x, d_weight
