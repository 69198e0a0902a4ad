"""RMSNorm and rotation of tensors as one operator of torch, and its derivative."""

from typing import Any

import torch

from rope_xp._core.call import NormSpec, RotationSpec

from . import op
from .library import Tensors
from .op_args import N_TENSORS, OpArgs, OpNorm
from .results import empty_result

CHUNK = 1 << 18
"""Elements differentiated at once, so that what is computed in between stays in cache."""
_N_OP_ARGS = len(OpArgs._fields)


def apply_op(arrays: Tensors, op_args: OpArgs, norm: OpNorm) -> Tensors:
    """Return arrays normalized and rotated, recorded by autograd where it is active."""
    (eps, weight_offset, _, over_slice), weights = norm
    numbers = eps, weight_offset, over_slice
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in arrays + weights):
        return tuple(_rotate(arrays, weights, *op_args, *numbers))
    if not torch.compiler.is_compiling():
        op_args = op_args.with_copied_positions(arrays[0])
    if len(weights) == 2 and weights[0] is weights[1]:  # which a compiler does not trace
        weights = weights[0], weights[0].view(-1)
    arguments = *numbers, len(arrays), *op_args, *arrays, *weights
    return tuple(_NormalizeRotate.apply(*arguments))  # type: ignore[no-untyped-call]  # in torch


class _NormalizeRotate(torch.autograd.Function):
    """Its arguments are three of the norm, the number of arrays, OpArgs, arrays, and weights."""

    @staticmethod
    def forward(
        eps: float, weight_offset: float, over_slice: bool, count: int, *arguments: Any
    ) -> Tensors:
        op_args, operands = arguments[:_N_OP_ARGS], arguments[_N_OP_ARGS:]
        numbers = eps, weight_offset, over_slice
        return tuple(_rotate(operands[:count], operands[count:], *op_args, *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: object) -> None:
        ctx.eps, ctx.weight_offset, ctx.over_slice, _, *arguments = inputs
        ctx.save_for_backward(*arguments[:N_TENSORS], *arguments[_N_OP_ARGS:])
        ctx.axes, ctx.layout, ctx.start, ctx.inverse = arguments[N_TENSORS:_N_OP_ARGS]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved, n = ctx.saved_tensors, len(grads)
        back = *saved[:N_TENSORS], ctx.axes, ctx.layout, ctx.start, not ctx.inverse
        op_args, operands = OpArgs(*back), saved[N_TENSORS:]
        # A compiler cannot trace a function within a backward pass.
        rotate = op.call_op if torch.compiler.is_compiling() else op.apply_op
        norm = NormSpec(ctx.eps, ctx.weight_offset, False, ctx.over_slice)
        spec, d_arrays, d_weights = op_args.spec._replace(norm=norm), [], []
        d_ys, weights = rotate(grads, op_args), operands[n:] or (None,) * n
        for x, weight, d_y in zip(operands[:n], weights, d_ys, strict=True):
            d_x, d_weight = _differentiate(x, weight, d_y, spec)
            d_arrays.append(d_x)
            d_weights += [] if weight is None else [d_weight]
        return *(None,) * (4 + _N_OP_ARGS), *d_arrays, *d_weights


def _differentiate(
    x: torch.Tensor, weight: Any, grad: torch.Tensor, spec: RotationSpec
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x and of its weight, from that of the normalized array."""
    axis, chunks = 0, [(x, grad)]
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and x.numel() > CHUNK:
        axis = max(range(x.ndim - 1), key=lambda i: x.shape[i])
        step = max(CHUNK * x.shape[axis] // x.numel(), 1)
        chunks = [*zip(torch.split(x, step, axis), torch.split(grad, step, axis), strict=True)]
    parts = [_differentiate_chunk(y, g, weight, spec) for y, g in chunks]
    d_x = torch.cat([part[0] for part in parts], axis)
    return d_x, None if weight is None else sum(part[1] for part in parts).to(weight.dtype)


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


def _run(arrays: Any, weights: Any, *args: Any) -> list[torch.Tensor]:
    *op_args, eps, weight_offset, over_slice = args
    norm = OpNorm(NormSpec(eps, weight_offset, False, over_slice), tuple(weights))
    return [*op.run_checked(None, tuple(arrays), OpArgs(*op_args), norm)]


_rotate = op.define(
    f"rotate_norm(Tensor[] arrays, Tensor[] weights, {op.OP_ARGS}, float eps, "
    "float weight_offset, bool over_slice) -> Tensor[]",
    _run,
    lambda arrays, *_: [empty_result(x) for x in arrays],
)
