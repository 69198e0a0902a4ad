"""RMSNorm and rotation of tensors as one operator of torch, and its derivative."""

from typing import Any

import torch

from rope_xp._core.call import NormSpec

from . import derivative, op
from .library import Tensors
from .op_args import N_TENSORS, OpArgs, OpNorm
from .recorded import record_norm
from .results import empty_result

_N_OP_ARGS = len(OpArgs._fields)


def apply_op(arrays: Tensors, op_args: OpArgs, norm: OpNorm) -> Tensors:
    """Return arrays normalized and rotated, recorded by autograd where it is active."""
    (eps, weight_offset, _, over_slice), weights = norm
    numbers = eps, weight_offset, over_slice
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in arrays + weights):
        return tuple(_rotate(arrays, weights, *op_args, *numbers))
    if not torch.compiler.is_compiling():
        op_args = op_args.with_copied_positions(arrays[0])
        with torch.no_grad():
            results = tuple(_rotate(arrays, weights, *op_args, *numbers))
        spec, saved = op_args.spec._replace(norm=norm.spec), op_args.angle_inputs
        return record_norm(results, op.prepare_back(op_args), saved, arrays, weights, spec)
    if len(weights) == 2 and weights[0] is weights[1]:  # which a compiler does not trace
        weights = weights[0], weights[0].view(-1)
    arguments = *numbers, len(arrays), *op_args, *arrays, *weights
    return tuple(_NormalizeRotate.apply(*arguments))  # type: ignore[no-untyped-call]  # in torch


class _NormalizeRotate(torch.autograd.Function):
    """The same while a compiler traces.

    Its arguments are three of the norm, the number of arrays, OpArgs, arrays, and weights.
    """

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
        spec, d_ys = op_args.spec._replace(norm=norm), rotate(grads, op_args)
        d_operands = derivative.differentiate(operands[:n], operands[n:], d_ys, spec)
        return *(None,) * (4 + _N_OP_ARGS), *d_operands


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
