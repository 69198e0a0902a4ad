"""RMSNorm and rotation of tensors as one operator of torch, and its derivative."""

from typing import Any

import torch

from rope_xp._core.call import Call, RotationSpec
from rope_xp._dispatch.norm import QKNorm
from rope_xp._rotation import portable

from . import op
from .library import Tensors
from .op_args import N_TENSORS, OpArgs, build_op_args, empty_result

CHUNK = 1 << 18
"""Elements differentiated at once, so that what is computed in between stays in cache."""
_N_OP_ARGS = len(OpArgs._fields)


def run(call: Call, **support: bool) -> Tensors:
    """Return the arrays of a call, normalized and rotated by the kernel of their device."""
    results: Tensors = ()
    for i, (arrays, out, source) in enumerate(call.groups(call.out or (), one_dtype=True)):
        norm = call.norm.select(i, len(arrays))
        op_args = build_op_args(portable.for_kernel(call, source, **support), call.spec)
        if out:
            op.run_kernel(out, arrays, op_args, norm)
            continue
        weights = norm.weights[: len(arrays)]
        operands = [x for x in (*arrays, *weights) if x is not None]
        if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
            if not torch.compiler.is_compiling():
                op_args = op_args.with_copied_positions(arrays[0])
            if len(weights) == 2 and weights[0] is weights[1]:  # which a compiler does not trace
                weights = weights[0], None if weights[0] is None else weights[0].view(-1)
            arguments = norm.eps, norm.offset, *op_args, *arrays, *weights
            results += tuple(_NormalizeRotate.apply(*arguments))  # type: ignore[no-untyped-call]  # in torch
        else:
            results += tuple(_rotate(arrays, weights, *op_args, norm.eps, norm.offset))
    return call.out or results


class _NormalizeRotate(torch.autograd.Function):
    """Its arguments are eps, offset, the fields of OpArgs, arrays, then as many weights or None."""

    @staticmethod
    def forward(eps: float, offset: float, *arguments: Any) -> Tensors:
        op_args, operands = arguments[:_N_OP_ARGS], arguments[_N_OP_ARGS:]
        n = len(operands) // 2
        return tuple(_rotate(operands[:n], operands[n:], *op_args, eps, offset))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: object) -> None:
        ctx.eps, ctx.offset, *arguments = inputs
        ctx.save_for_backward(*arguments[:N_TENSORS], *arguments[_N_OP_ARGS:])
        ctx.axes, ctx.layout, ctx.start, ctx.inverse = arguments[N_TENSORS:_N_OP_ARGS]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved, n = ctx.saved_tensors, len(grads)
        back = *saved[:N_TENSORS], ctx.axes, ctx.layout, ctx.start, not ctx.inverse
        op_args, operands = OpArgs(*back), saved[N_TENSORS:]
        # A compiler cannot trace a function within a backward pass.
        rotate = op.call_op if torch.compiler.is_compiling() else op.apply_op
        norm, d_arrays, d_weights = QKNorm(eps=ctx.eps, offset=ctx.offset), [], []
        d_ys = rotate(grads, op_args)
        for x, weight, d_y in zip(operands[:n], operands[n:], d_ys, strict=True):
            d_x, d_weight = _differentiate(x, weight, d_y, norm, op_args.spec)
            d_arrays.append(d_x)
            d_weights.append(d_weight)
        return *(None,) * (2 + _N_OP_ARGS), *d_arrays, *d_weights


def _differentiate(
    x: torch.Tensor, weight: Any, grad: torch.Tensor, norm: QKNorm, spec: RotationSpec
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x and of its weight, from that of the normalized array."""
    axis, chunks = 0, [(x, grad)]
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and x.numel() > CHUNK:
        axis = max(range(x.ndim - 1), key=lambda i: x.shape[i])
        step = max(CHUNK * x.shape[axis] // x.numel(), 1)
        chunks = [*zip(torch.split(x, step, axis), torch.split(grad, step, axis), strict=True)]
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


def _run(arrays: list[torch.Tensor], weights: list[Any], *args: Any) -> list[torch.Tensor]:
    *op_args, eps, offset = args
    q_weight, k_weight = (*weights, None)[:2]
    norm = QKNorm(q_weight, k_weight, eps, offset)
    return [*op.run_kernel(None, tuple(arrays), OpArgs(*op_args), norm)]


_rotate = op.define(
    f"rotate_norm(Tensor[] arrays, Tensor?[] weights, {op.OP_ARGS}, float eps, float added)"
    " -> Tensor[]",
    _run,
    lambda arrays, *_: [empty_result(x) for x in arrays],
)
