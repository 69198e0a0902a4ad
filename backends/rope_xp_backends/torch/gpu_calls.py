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
from .op_args import build_op_args
from .results import allocate_result

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
    out: tuple[torch.Tensor | None, ...] | None
    """None for new results, or, before a cache, for new q."""
    slots: torch.Tensor | None
    saved: Tensors | None
    """What backward reads, None where no gradient is recorded."""


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    rope, q, k, positions, k_positions, axes, out, norm, slots, cache_axes, how = call
    given = tuple([p for p in (positions, k_positions) if p is not None])
    integral = all(type(p) is torch.Tensor and p.dtype in _INTEGERS for p in given)
    if not integral or (k_positions is not None and positions is None):
        return None
    arrays = (q,) if how & ONE else (q, k)
    options = rope, axes, cache_axes, how
    signature = _sign(options, arrays, given, out, norm, slots, how)
    if signature is None:
        return None

    def parse_call(out: Any) -> Call:
        build = builders["rotate_by_rope"]
        return build(rope, arrays, positions, axes, out, read_norm(norm), how, k_positions)

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return recorded.transpose_rope(rope, grads, saved, axes, how)

    return _run(signature, _with_slots(parse_call, out, slots, cache_axes), rotate_back, how)


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    slice_, (q, k, cos, sin, axes, out, norm, slots, cache_axes, how) = call[:4], call[4:]
    arrays = (q,) if how & ONE else (q, k)
    inputs = cos, sin
    if not gpu.are_read(inputs, q):
        return None
    inputs = tuple([one_per_pair(t, COLUMN_FORMS[slice_[3]]) for t in inputs])
    options = *slice_, type(slice_[2]) is int, axes, cache_axes, how
    signature = _sign(options, arrays, inputs, out, norm, slots, how)
    if signature is None:
        return None

    def parse_call(out: Any) -> Call:
        build = builders["rotate_by_tables"]
        return build(slice_, arrays, inputs, axes, out, read_norm(norm), how)

    def rotate_back(grads: Tensors, saved: Tensors) -> Tensors:
        return recorded.transpose_tables(slice_, grads, saved, axes, how)

    return _run(signature, _with_slots(parse_call, out, slots, cache_axes), rotate_back, how)


def _with_slots(
    parse_call: Callable[[Any], Call], out: Any, slots: Any, cache_axes: Any
) -> Callable[[], Call]:
    if slots is None:
        return lambda: parse_call(out)
    return lambda: builders["add_slots"](parse_call(None), slots, cache_axes, out)


def _sign(
    options: tuple[Hashable, ...],
    arrays: Tensors,
    angle_inputs: Tensors,
    out: Any,
    norm: Any,
    slots: Any,
    how: int,
) -> Signature | None:
    """Return the signature of a call, None where the slow path has to look."""
    x, weights, outs = arrays[0], (), (out,) if how & ONE and out is not None else out
    norm = read_norm(norm)
    if not (_fit_results(outs, slots, len(arrays)) and _fits_norm(norm)):
        return None
    if private.is_observed() or private.is_capturing(x.device):
        return None
    if norm is not None:
        described, weights = describe_norm(norm, len(arrays))
        options += (described,)
    saved = None
    if outs is None and norm is None and recorded.need_gradients(arrays):
        saved = _save_angles(angle_inputs)
        if saved is None:
            return None
    written = tuple([y for y in outs or () if y is not None])
    read = arrays + written + weights + angle_inputs + (() if slots is None else (slots,))
    if not _can_read_all(read, written, x.device, recorded=saved is not None):
        return None
    in_place = outs and tuple(map(is_, arrays, outs))
    key: list[Hashable] = [*options, choice.name, in_place, saved is None, slots is None]
    key += x.device, private.current_stream(x.device)  # as tables must know streams that read them
    for t in read:  # kernels are compiled for alignments
        key += t.dtype, t.shape, t.stride(), t.data_ptr() % ACCESS
    return Signature(tuple(key), arrays, weights, angle_inputs, outs, slots, saved)


def _save_angles(angle_inputs: Tensors) -> Tensors | None:
    """Return what a gradient needs of angles, None for positions of q and of k."""
    integers = [x for x in angle_inputs if not x.is_floating_point()]
    if integers and len(angle_inputs) > 1:
        return None
    return recorded.copy_positions(integers[0]) if integers else angle_inputs


def _fit_results(outs: Any, slots: Any, count: int) -> bool:
    """Return whether results are as expected: q is new only where k goes to slots."""
    if outs is None:
        return slots is None
    if type(outs) is not tuple or len(outs) != count or outs[-1] is None:
        return False
    return outs[0] is not None if slots is None else type(slots) is torch.Tensor


def _fits_norm(norm: Any) -> bool:
    return norm is None or (type(norm) is QKNorm and not norm.round_between)


def _can_read_all(read: Tensors, written: Tensors, device: torch.device, *, recorded: bool) -> bool:
    if any(y.is_inference() for y in written) and not torch.is_inference_mode_enabled():
        return False
    return all(_can_read(x, device, recorded=recorded) for x in read)


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
    if signature.slots is not None:
        return results[0], signature.out[1]  # type: ignore[index]  # the cache, of which there is a view
    return results[0] if how & ONE else results


def _launch(cached: CachedLaunch, signature: Signature) -> Tensors | None:
    _, arrays, weights, angle_inputs, out, slots, _ = signature
    tables = None if cached.tables is None else cached.tables()
    if (cached.tables is not None and tables is None) or not gpu.is_current(arrays[0]):
        return None
    if out is not None and not _are_apart(signature):
        return None
    with torch.no_grad():
        if out is not None and out[0] is None:
            out = allocate_result(arrays[0]), out[1]
        return cached.launch(arrays, weights, angle_inputs, out, tables, slots)  # type: ignore[arg-type]  # none is None


def _are_apart(signature: Signature) -> bool:
    """Return whether no result overlaps anything else that is read or written."""
    _, arrays, weights, angle_inputs, out, slots, _ = signature
    inputs = [x for x, y in zip(arrays, out or (), strict=True) if x is not y]
    inputs += weights + angle_inputs + (() if slots is None else (slots,))
    outs = [y for y in out or () if y is not None]
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
    arrays, first = call.arrays, call.angles[0]
    own = signature.angle_inputs[1:] if isinstance(first, TableLookup) else ()
    if len(call.angles) != 1 + len(own) or arrays[0].dtype != arrays[-1].dtype:
        return
    if heads.differ_by_head(call):
        return
    if call.slots is not None and call.slots.numbers is not signature.slots:
        return  # of another dtype, or in host memory
    if any(x.stride(-1) != 1 for x in (*arrays, *results, *signature.weights)):
        return
    given = (*signature.angle_inputs, None)
    all_args = []
    for source, whole in zip(call.angles, given, strict=False):
        if isinstance(source, TableLookup):
            is_single = whole is not None and whole.ndim == (source.components > 0)
            if is_single or not portable.is_read_on_gpu(call, source):
                return  # a token without an axis, or fractions
            source = replace(source, whole=whole)  # noqa: PLW2901  # as the caller has it
        all_args.append(build_op_args(source, call.spec))
    if own and not gpu.can_share(*all_args):
        return
    of_k = gpu.OfK(all_args[1] if own else None, call.slots)
    launch = gpu.prepare_triton_launch(results, arrays, all_args[0], signature.weights, of_k)
    if launch is not None:
        tables = weakref.ref(first.tables) if isinstance(first, TableLookup) else None
        CALLS.store(signature.key, CachedLaunch(launch, tables))
