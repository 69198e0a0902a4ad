"""The rotation as one operator of torch, for autograd, torch.func and compilers.

The operator has no derivative; :class:`_Rotate` around it has. No other way passes gradcheck,
torch.func, ``torch.compile`` with ``fullgraph`` and export together: an operator with
``register_autograd`` fails under torch.func (https://github.com/pytorch/pytorch/issues/168393) and
has silent zeros for forward-mode tangents.
"""

import string
from collections.abc import Callable
from typing import Any

import torch

from rope_xp._arguments.out import check_out
from rope_xp._core.call import Call
from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch import choose, find
from rope_xp._rotation import portable

from . import private
from .cpu import rotate_on_cpu
from .gpu import NOTHING_OF_K, OfK, rotate_on_gpu
from .library import Tensors, Torch, is_plain
from .namespace import xp
from .op_args import N_TENSORS, OpArgs, OpNorm
from .op_checks import check_arguments, check_devices
from .recorded import RotateBack, record
from .results import allocate_result, empty_result

# Optional tensors and no lists of them, which the older vmap behind is_grads_batched cannot take.
# The tables are (low, middle, high), or (cos, sin, None). Positions and their fractional parts are
# (batch..., tokens), or (batch..., tokens, components) where ``components``, (r/2,), holds the one
# that a frequency reads.
OP_ARGS = (
    "Tensor? positions, Tensor? part, Tensor table, Tensor table_2, Tensor? table_3, "
    "Tensor? frequencies, Tensor? components, str axes, str layout, int offset, bool inverse"
)
_STRIDES_TAG = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
_TAGS = (torch.Tag.pt2_compliant_tag, _STRIDES_TAG)
_library = torch.library.Library("rope_xp", "FRAGMENT")
_N_OP_ARGS = len(OpArgs._fields)
_PORTABLE = Torch("torch", xp)


def apply_op(arrays: Tensors, op_args: OpArgs) -> Tensors:
    """Return arrays rotated, recorded by autograd and transforms where these are active."""
    if arrays[0].requires_grad != arrays[-1].requires_grad:
        # All results of one autograd.Function would require a gradient, and one have none to give.
        return apply_op(arrays[:1], op_args) + apply_op(arrays[1:], op_args)
    needs_grad = torch.is_grad_enabled() and arrays[0].requires_grad
    transformed = private.are_transforms_active()
    if not needs_grad and not transformed:
        return call_op(arrays, op_args)
    if transformed or torch.compiler.is_compiling():
        return tuple(_Rotate.apply(*op_args, *arrays))
    op_args = op_args.with_copied_positions(arrays[0])
    with torch.no_grad():
        results = call_op(arrays, op_args)
    return record(results, prepare_back(op_args), op_args.angle_inputs, arrays)


def prepare_back(op_args: OpArgs) -> RotateBack:
    """Return the function that rotates gradients back, by saved angle inputs."""
    back = op_args.with_angle_inputs(())._replace(inverse=not op_args.inverse)

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        op_args = back.with_angle_inputs(saved)
        return run_kernel(None, grads, op_args) if is_unseen(grads) else apply_op(grads, op_args)

    return rotate_back


def call_op(arrays: Tensors, op_args: OpArgs | tuple[Any, ...]) -> Tensors:
    """Return arrays rotated, which nothing records."""
    if len(arrays) == 1:
        return (_rotate(*arrays, *op_args),)
    return tuple(_rotate_pair(*arrays, *op_args))


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


# --- derivatives ---------------------------------------------------------------------------------


class _Rotate(torch.autograd.Function):
    """A rotation is linear and its transpose is its inverse, so nothing but angles is saved.

    Its arguments are the fields of OpArgs, then the arrays: torch.compile flattens tuples.
    """

    @staticmethod
    def forward(*arguments: Any) -> Tensors:
        return call_op(arguments[_N_OP_ARGS:], arguments[:_N_OP_ARGS])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: object) -> None:
        ctx.save_for_backward(*inputs[:N_TENSORS])
        ctx.axes, ctx.layout, ctx.offset, ctx.inverse = inputs[N_TENSORS:_N_OP_ARGS]
        if not torch.compiler.is_compiling():  # which cannot trace it
            ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        back = (*ctx.saved_tensors, ctx.axes, ctx.layout, ctx.offset, not ctx.inverse)
        if torch.compiler.is_compiling():  # which cannot trace a function within a backward pass
            return *(None,) * _N_OP_ARGS, *call_op(grads, back)
        used = tuple([g for g in grads if g is not None])
        rotated = iter(apply_op(used, OpArgs(*back)) if used else ())
        return *(None,) * _N_OP_ARGS, *[None if g is None else next(rotated) for g in grads]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, ...]:
        """Make the mapped axis one more batch axis, the first."""
        op_args = OpArgs(*arguments[:_N_OP_ARGS])
        names = op_args.axes
        batch = len(set(names) - set("shd"))
        letter = next(c for c in string.ascii_letters if c not in names + "shd")
        ndim = 2 if op_args.components is None else 3  # of positions, with the mapped axis
        ndims = (ndim, ndim, 3, 3, 3)
        angles = [
            _move_mapped_axis(x, axis, batch + n)
            for x, axis, n in zip(op_args[:5], in_dims[:5], ndims, strict=True)
        ]
        arrays = [
            x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
            for x, axis in zip(arguments[_N_OP_ARGS:], in_dims[_N_OP_ARGS:], strict=True)
        ]
        op_args = OpArgs._make([*angles, *op_args[len(angles) :]])._replace(axes=letter + names)
        return apply_op(tuple(arrays), op_args), (0,) * len(arrays)


def _move_mapped_axis(angles: Any, axis: int | None, ndim: int) -> Any:
    """Return angles with the mapped axis first, then all axes that angles can have."""
    if angles is None or axis is None:
        return angles
    angles = angles.movedim(axis, 0)
    return angles.reshape(angles.shape[0], *(1,) * (ndim - angles.ndim), *angles.shape[1:])


# --- implementations -----------------------------------------------------------------------------

RUNS: dict[str, Callable[..., Tensors]] = {"cpu": rotate_on_cpu, "cuda": rotate_on_gpu}
"""By device type: ``run(out, arrays, op_args, norm)`` returns out, or new results where it is None,
or raises PathUnavailable."""


def run_kernel(
    out: Tensors | None,
    arrays: Tensors,
    op_args: OpArgs,
    norm: OpNorm | None = None,
    of_k: OfK = NOTHING_OF_K,
) -> Tensors:
    """Run the kernel of the device, or else the portable path."""
    try:
        more = () if of_k is NOTHING_OF_K else (of_k,)
        return RUNS[arrays[0].device.type](out, arrays, op_args, norm, *more)
    except PathUnavailable as reason:
        choose.raise_if_forced(reason)
        # A compiled graph runs this too, in a process where kernels fail.
        out = tuple(map(allocate_result, arrays)) if out is None else out
        spec = op_args.spec._replace(norm=norm and norm.spec)
        k_args, slots = of_k
        tokens = [x.shape[spec.axes.tokens] for x in arrays]
        sources = [x.source(n) for x, n in zip((op_args, k_args), tokens, strict=False) if x]
        weights = () if norm is None else norm.weights or (None,) * len(arrays)
        return portable.run(Call(_PORTABLE, arrays, tuple(sources), out, spec, weights, slots))


def run_checked(
    out: Tensors | None, arrays: Tensors, op_args: OpArgs, norm: OpNorm | None = None
) -> Tensors:
    """Do the same for arguments that nothing has checked."""
    check_arguments(arrays, op_args, norm.weights if norm else ())
    return run_kernel(out, arrays, op_args, norm)


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Return a new operator."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=_TAGS)
    torch.library.impl(f"rope_xp::{name}", tuple(RUNS), run, lib=_library)

    def fake_checked(*args: Any) -> Any:  # run for real ones too, where one of them is on meta
        check_devices(*args)
        return fake(*args)

    torch.library.register_fake(f"rope_xp::{name}", fake_checked, lib=_library)
    return getattr(torch.ops.rope_xp, name).default


_rotate = define(
    f"rotate(Tensor x, {OP_ARGS}) -> Tensor",
    lambda x, *args: run_checked(None, (x,), OpArgs(*args))[0],
    lambda x, *_: empty_result(x),
)
_rotate_pair = define(
    f"rotate_pair(Tensor q, Tensor k, {OP_ARGS}) -> (Tensor, Tensor)",
    lambda q, k, *args: run_checked(None, (q, k), OpArgs(*args)),
    lambda q, k, *_: (empty_result(q), empty_result(k)),
)


def _rotate_out(out: list[torch.Tensor], arrays: list[torch.Tensor], *args: Any) -> None:
    op_args = OpArgs(*args)
    results = out[0] if len(arrays) == 1 else tuple(out)
    backend = find.require_backend(arrays[0], "arrays[0]")
    inputs = zip(("positions", "part"), op_args.angle_inputs, strict=False)
    check_out(backend, tuple(arrays), results, inputs)
    run_checked(tuple(out), tuple(arrays), op_args)


rotate_out = define(
    f"rotate_out(Tensor(a!)[] out, Tensor[] arrays, {OP_ARGS}) -> ()", _rotate_out, lambda *_: None
)
