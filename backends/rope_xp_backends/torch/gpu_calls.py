"""Launches of Triton's kernel for calls like earlier ones, as to plan one takes far longer.

A key holds a rope or options, and the class, dtype, shape, strides and alignment of every tensor. A
launch holds no tensors, and refers to tables weakly. Calls that may be errors, such as results that
may overlap, are left to the slow path.
"""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, TableLookup
from rope_xp._core.memory import ACCESS
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch import choose, heads
from rope_xp._dispatch.choose import choice
from rope_xp._dispatch.how import ONE, builders
from rope_xp._rotation import portable
from rope_xp.norm import QKNorm, describe_norm, read_norm

from . import gpu, private, recorded
from .library import Tensors, is_plain
from .op_args import OpNorm, build_op_args

_INTEGERS = (torch.int64, torch.int32)


class CachedLaunch(NamedTuple):
    """A launch, and the tables that it reads."""

    launch: gpu.TritonLaunch
    tables: "weakref.ref[DigitTables] | None"
    """None where cos and sin are given."""


CALLS = BoundedCache(f"{__name__}.CALLS", 512)


class Signature(NamedTuple):
    """A call on plain tensors of one device, and what stands for all that its launch depends on."""

    key: Hashable
    arrays: Tensors
    weights: Tensors
    angle_inputs: Tensors
    out: Tensors | None
    saved: Tensors | None
    """What backward reads, None where no gradient is recorded."""


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    rope, q, k, positions, k_positions, axes, out, norm, slots, _, how = call
    given = () if positions is None else (positions,)
    integral = all(type(p) is torch.Tensor and p.dtype in _INTEGERS for p in given)
    if k_positions is not None or slots is not None or not integral:
        return None
    arrays = (q,) if how & ONE else (q, k)
    signature = _sign((rope, axes, how), arrays, given, out, norm, how)
    if signature is None:
        return None

    def parse_call() -> Call:
        build = builders["rotate_by_rope"]
        return build(rope, arrays, positions, axes, out, read_norm(norm), how)

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return recorded.transpose_rope(rope, grads, saved, axes, how)

    return _run(signature, parse_call, rotate_back, how)


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    slice_, (q, k, cos, sin, axes, out, norm, slots, _, how) = call[:4], call[4:]
    arrays = (q,) if how & ONE else (q, k)
    inputs = cos, sin
    if (
        slots is not None
        or not all(type(t) is torch.Tensor for t in inputs)
        or not recorded.are_constant(inputs, q)
    ):
        return None
    inputs = tuple([one_per_pair(t, COLUMN_FORMS[slice_[3]]) for t in inputs])
    signature = _sign((*slice_, type(slice_[2]) is int, axes, how), arrays, inputs, out, norm, how)
    if signature is None:
        return None

    def parse_call() -> Call:
        build = builders["rotate_by_tables"]
        return build(slice_, arrays, inputs, axes, out, read_norm(norm), how)

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return recorded.transpose_tables(slice_, grads, saved, axes, how)

    return _run(signature, parse_call, rotate_back, how)


def _sign(
    options: tuple[Hashable, ...],
    arrays: Tensors,
    angle_inputs: Tensors,
    out: Any,
    norm: Any,
    how: int,
) -> Signature | None:
    """Return the signature of a call, None where the slow path has to look."""
    x, weights, outs = arrays[0], (), (out,) if how & ONE and out is not None else out
    norm = read_norm(norm)
    fits = outs is None or (type(outs) is tuple and len(outs) == len(arrays))
    if private.is_observed() or private.is_capturing(x.device) or not fits:
        return None
    if norm is not None:
        if type(norm) is not QKNorm:
            return None
        described, weights = describe_norm(norm, len(arrays))
        options += (described,)
    saved = None
    if outs is None and norm is None and recorded.need_gradients(arrays):
        saved = angle_inputs
        if angle_inputs and not angle_inputs[0].is_floating_point():
            saved = recorded.copy_positions(angle_inputs[0])
    in_place = outs and tuple(map(is_, arrays, outs))
    key: list[Hashable] = [*options, choice.name, in_place, saved is None]
    key += x.device, private.current_stream(x.device)  # as tables must know streams that read them
    for t in arrays + (outs or ()) + weights + angle_inputs:
        if not _can_read(t, x.device, recorded=saved is not None):
            return None
        # Kernels are compiled for alignments.
        key += t.dtype, t.shape, t.stride(), t.data_ptr() % ACCESS
    if any(y.is_inference() for y in outs or ()) and not torch.is_inference_mode_enabled():
        return None
    return Signature(tuple(key), arrays, weights, angle_inputs, outs, saved)


def _can_read(x: torch.Tensor, device: torch.device, *, recorded: bool) -> bool:
    """Return whether a kernel reads a tensor, and no gradient is lost."""
    # A functional tensor looks plain, and has no memory.
    is_here = is_plain(x) and x.device == device and x.data_ptr() != 0
    return is_here and (recorded or not (x.requires_grad and torch.is_grad_enabled()))


def _run(
    signature: Signature,
    parse_call: Callable[[], Call],
    rotate_back: recorded.RotateBack,
    how: int,
) -> Any:
    """Launch as for an earlier call, or run the slow path and keep its launch."""
    try:
        cached = CALLS.get(signature.key)
    except TypeError:  # an option without a hash, for which the slow path raises
        return None
    results = None if cached is None else _launch(cached, signature)
    if results is None:
        call = parse_call()
        path, results = choose.run_on_path(call)
        if path is not None and path.name == "triton":
            _keep_launch(call, signature, results)
    elif signature.saved is not None:
        results = recorded.record(results, rotate_back, signature.saved, signature.arrays)
    return results[0] if how & ONE else results


def _launch(cached: CachedLaunch, signature: Signature) -> Tensors | None:
    _, arrays, weights, angle_inputs, out, _ = signature
    tables = None if cached.tables is None else cached.tables()
    if (cached.tables is not None and tables is None) or not gpu.is_current(arrays[0]):
        return None
    if out is not None and not _are_apart(signature):
        return None
    with torch.no_grad():
        return cached.launch(arrays, weights, angle_inputs, out, tables)


def _are_apart(signature: Signature) -> bool:
    """Return whether no result overlaps anything else that is read or written."""
    _, arrays, weights, angle_inputs, out, _ = signature
    outs = out or ()
    inputs = [x for x, y in zip(arrays, outs, strict=True) if x is not y]
    inputs += weights + angle_inputs
    return all(
        other is not y and _lie_apart(other, y)
        for i, y in enumerate(outs)
        for other in (*outs[:i], *inputs)
    )


def _lie_apart(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Compare addresses alone; torch has no negative strides."""
    (start, end), (other_start, other_end) = _byte_range(x), _byte_range(y)
    return end <= other_start or other_end <= start


def _byte_range(x: torch.Tensor) -> tuple[int, int]:
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return start, start + (last + 1) * x.element_size() if x.numel() else start


def _keep_launch(call: Call, signature: Signature, results: Tensors) -> None:
    """Keep the launch of a call that has run, if one suffices."""
    arrays, source = call.arrays, call.angles[0]
    if len(call.angles) > 1 or arrays[0].dtype != arrays[-1].dtype or heads.differ_by_head(call):
        return
    if any(x.stride(-1) != 1 for x in (*arrays, *results, *signature.weights)):
        return
    if isinstance(source, TableLookup):
        whole = (*signature.angle_inputs, None)[0]
        is_single = whole is not None and whole.ndim == (source.components > 0)
        if is_single or not portable.is_read_on_gpu(call, source):
            return  # a token without an axis, or fractions
        source = replace(source, whole=whole)  # as the caller has it
    op_norm = call.spec.norm and OpNorm(call.spec.norm, signature.weights)
    launch = gpu.prepare_triton_launch(results, arrays, build_op_args(source, call.spec), op_norm)
    if launch is not None:
        tables = weakref.ref(source.tables) if isinstance(source, TableLookup) else None
        CALLS.store(signature.key, CachedLaunch(launch, tables))
