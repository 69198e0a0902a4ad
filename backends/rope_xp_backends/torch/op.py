"""RMSNorm and rotation as one operator of torch, for autograd, torch.func and compilers.

The operator has no derivative; :class:`_Rotate` around it has. No other way passes gradcheck,
torch.func, ``torch.compile`` with ``fullgraph`` and export together: an operator with
``register_autograd`` fails under torch.func (https://github.com/pytorch/pytorch/issues/168393) and
has silent zeros for forward-mode tangents.
"""

import string
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as xp
import torch

from rope_xp._core.call import Call, Slots
from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch import choose
from rope_xp._rotation import portable

from . import derivative, private
from .cpu import rotate_on_cpu
from .gpu import rotate_on_gpu
from .library import Tensors, Torch, is_plain
from .op_args import N_TENSORS, OpArgs, check_arguments, check_devices
from .recorded import RotateBack, record
from .results import allocate_result, empty_result

# Optional tensors and no lists of them, which the older vmap behind is_grads_batched cannot take.
_SCHEMA = (
    "rotate(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor? positions, "
    "Tensor? part, Tensor table, Tensor table_2, Tensor? table_3, Tensor? frequencies, "
    "Tensor? components, str axes, str layout, int offset, bool inverse, float? eps, "
    "float weight_offset, bool over_slice) -> (Tensor, Tensor)"
)
_STRIDES_TAG = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
_N_OP_ARGS = len(OpArgs._fields)
_PORTABLE = Torch("torch", xp)


def apply_op(arrays: Tensors, op_args: OpArgs, weights: Tensors = ()) -> Tensors:
    """Return arrays rotated, recorded by autograd and transforms where these are active."""
    if op_args.eps is None and arrays[0].requires_grad != arrays[-1].requires_grad:
        # All results of one autograd.Function would require a gradient, and one have none to give.
        return apply_op(arrays[:1], op_args) + apply_op(arrays[1:], op_args)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in arrays + weights)
    transformed = private.are_transforms_active()
    if not needs_grad and not transformed:
        return call_op(arrays, op_args, weights)
    if transformed or torch.compiler.is_compiling():
        if len(weights) == 2 and weights[0] is weights[1]:  # which a compiler does not trace
            weights = weights[0], weights[0].view(-1)
        return tuple(_Rotate.apply(len(arrays), *op_args, *arrays, *weights))
    op_args = op_args.with_copied_positions(arrays[0])
    with torch.no_grad():
        results = call_op(arrays, op_args, weights)
    spec = None if op_args.eps is None else op_args.spec
    return record(results, prepare_back(op_args), op_args.angle_inputs, arrays, weights, spec)


def prepare_back(op_args: OpArgs) -> RotateBack:
    """Return the function that rotates gradients back, by saved angle inputs."""
    back = op_args.with_angle_inputs(()).transpose()

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        op_args = back.with_angle_inputs(saved)
        return run_kernel(None, grads, op_args) if is_unseen(grads) else apply_op(grads, op_args)

    return rotate_back


def call_op(arrays: Tensors, op_args: OpArgs, weights: Tensors = ()) -> Tensors:
    """Return arrays rotated, which nothing records."""
    operands = *(*arrays, None)[:2], *(*weights, None, None)[:2]
    return tuple(_rotate(*operands, *op_args))[: len(arrays)]


def is_unseen(tensors: Tensors) -> bool:
    """Return whether nothing sees or records operations on tensors.

    A kernel may then run without the dispatcher and the checks of an operator, which take 25 us.
    """
    if torch.compiler.is_compiling() or private.is_observed():
        return False
    records = torch.is_grad_enabled()
    return all(
        is_plain(x)
        and private.has_storage(x)
        and not private.is_functional(x)
        and not (records and x.requires_grad)
        for x in tensors
    )


class _Rotate(torch.autograd.Function):
    """A rotation is linear and its transpose is its inverse, so nothing but angles is saved.

    With a norm, while a compiler traces, the arrays and weights are saved too. Its arguments are
    the number of arrays, OpArgs, arrays and weights: torch.compile flattens tuples.
    """

    @staticmethod
    def forward(count: int, *arguments: Any) -> Tensors:
        op_args, operands = OpArgs(*arguments[:_N_OP_ARGS]), arguments[_N_OP_ARGS:]
        return call_op(operands[:count], op_args, operands[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: object) -> None:
        _, *arguments = inputs
        ctx.plain = arguments[N_TENSORS:_N_OP_ARGS]
        op_args = OpArgs(*arguments[:_N_OP_ARGS])
        operands = arguments[_N_OP_ARGS:] if op_args.eps is not None else ()
        ctx.save_for_backward(*arguments[:N_TENSORS], *operands)
        if not torch.compiler.is_compiling():  # which cannot trace it
            ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved, n = ctx.saved_tensors, len(grads)
        op_args, operands = OpArgs(*saved[:N_TENSORS], *ctx.plain), saved[N_TENSORS:]
        back = op_args.transpose()
        if torch.compiler.is_compiling():  # which cannot trace a function within a backward pass
            rotated: Any = call_op(grads, back)
        else:
            used = tuple([g for g in grads if g is not None])
            results = iter(apply_op(used, back) if used else ())
            rotated = [None if g is None else next(results) for g in grads]
        if op_args.eps is not None:
            rotated = derivative.differentiate(operands[:n], operands[n:], rotated, op_args.spec)
        return *(None,) * (1 + _N_OP_ARGS), *rotated

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], count: int, *arguments: Any
    ) -> tuple[Any, ...]:
        """Make the mapped axis one more batch axis, the first. There is no norm."""
        op_args = OpArgs(*arguments[:_N_OP_ARGS])
        names = op_args.axes
        batch = len(set(names) - set("shd"))
        letter = next(c for c in string.ascii_letters if c not in names + "shd")
        ndim = 2 if op_args.components is None else 3  # of positions, with the mapped axis
        ndims = (ndim, ndim, 3, 3, 3)
        angles = [
            _move_mapped_axis(x, axis, batch + n)
            for x, axis, n in zip(op_args[:5], in_dims[1:6], ndims, strict=True)
        ]
        arrays = [
            x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
            for x, axis in zip(arguments[_N_OP_ARGS:], in_dims[1 + _N_OP_ARGS :], strict=True)
        ]
        op_args = OpArgs._make([*angles, *op_args[len(angles) :]])._replace(axes=letter + names)
        return apply_op(tuple(arrays), op_args), (0,) * count


def _move_mapped_axis(angles: Any, axis: int | None, ndim: int) -> Any:
    """Return angles with the mapped axis first, then all axes that angles can have."""
    if angles is None or axis is None:
        return angles
    angles = angles.movedim(axis, 0)
    return angles.reshape(angles.shape[0], *(1,) * (ndim - angles.ndim), *angles.shape[1:])


# --- implementations -----------------------------------------------------------------------------

RUNS: dict[str, Callable[..., Tensors]] = {"cpu": rotate_on_cpu, "cuda": rotate_on_gpu}
"""By device type: ``run(out, arrays, op_args, weights)`` returns out, or new results where it is
None, or raises PathUnavailable."""


def run_kernel(
    out: Tensors | None,
    arrays: Tensors,
    op_args: OpArgs,
    weights: Tensors = (),
    k_args: OpArgs | None = None,
    slots: Slots | None = None,
) -> Tensors:
    """Run the kernel of the device, or else the portable path.

    On GPUs k may have angles of its own, ``k_args``, and go to slots.
    """
    try:
        more = () if k_args is None and slots is None else (k_args, slots)
        return RUNS[arrays[0].device.type](out, arrays, op_args, weights, *more)
    except PathUnavailable as reason:
        choose.raise_if_forced(reason)
        # A compiled graph runs this too, in a process where kernels fail.
        out, spec = out or tuple(map(allocate_result, arrays)), op_args.spec
        tokens = [x.shape[spec.axes.tokens] for x in arrays]
        sources = [x.source(n) for x, n in zip((op_args, k_args), tokens, strict=False) if x]
        if spec.norm is not None:
            weights = weights or (None,) * len(arrays)  # type: ignore[assignment]  # of a Call
        return portable.run(Call(_PORTABLE, arrays, tuple(sources), out, spec, weights, slots))


def _run(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the operator; the second result is empty where there is no k."""
    q, k, *weights = arguments[:4]
    arrays, op_args = (q,) if k is None else (q, k), OpArgs(*arguments[4:])
    given = tuple([w for w in weights if w is not None])
    check_arguments(arrays, op_args, given)
    return _fill(*run_kernel(None, arrays, op_args, given))


def _run_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    check_devices(*arguments)  # those of real ones too, where one of them is on meta
    return _fill(*[empty_result(x) for x in arguments[:2] if x is not None])


def _fill(y: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y, others[0] if others else y.new_empty(0)


_library = torch.library.Library("rope_xp", "FRAGMENT")
_library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag, _STRIDES_TAG))
torch.library.impl("rope_xp::rotate", tuple(RUNS), _run, lib=_library)
torch.library.register_fake("rope_xp::rotate", _run_fake, lib=_library)
_rotate = torch.ops.rope_xp.rotate.default
