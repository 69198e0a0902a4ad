"""Launches of Triton's kernel for calls like earlier ones, as to plan one takes far longer.

A key holds a rope or options, and what the native module reads of tensors. Without that module all
calls are planned. A launch holds no tensors, and refers to tables weakly. Calls that may be errors,
such as results that may overlap, are left to the slow path.
"""

import weakref
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, TableLookup
from rope_xp._dispatch import choose, heads
from rope_xp._dispatch.choose import choice
from rope_xp._dispatch.how import ONE, builders
from rope_xp._rotation import portable
from rope_xp.norm import QKNorm, describe_norm, read_norm

from . import entry, gpu, private, recorded
from .library import Tensors
from .op_args import build_op_args

_INTEGERS = (torch.int64, torch.int32)


CALLS = BoundedCache(f"{__name__}.CALLS", 512)
"""Pairs of a launch and a reference to its tables, None where cos and sin are given."""


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
    positions, k_positions = call[3:5]
    given = tuple([p for p in (positions, k_positions) if p is not None])
    integral = all(type(p) is torch.Tensor and p.dtype in _INTEGERS for p in given)
    if not integral or (k_positions is not None and positions is None):
        return None
    return _rotate(call[:1], call[1:], (positions, k_positions), given)


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    if not gpu.are_read(call[6:8], call[4]):
        return None
    inputs = tuple([one_per_pair(t, COLUMN_FORMS[call[3]]) for t in call[6:8]])
    return _rotate(call[:4], call[4:], inputs, inputs)


def _rotate(
    head: tuple[Any, ...], rest: tuple[Any, ...], angles: Any, angle_inputs: Tensors
) -> Any:
    """Launch as for an earlier call, or run the slow path and keep its launch."""
    q, k, _, _, axes, out, norm, slots, cache_axes, how = rest
    arrays, norm = (q,) if how & ONE else (q, k), read_norm(norm)
    options = *head, *map(type, head[2:3]), axes, cache_axes, how  # True is no offset
    signature = _sign(options, arrays, angle_inputs, out, norm, slots, how)
    if signature is None:
        return None
    try:
        cached = CALLS.get(signature.key)
    except TypeError:  # an option without a hash, for which the slow path raises
        return None
    results = None if cached is None else _launch(cached, signature)
    if results is None:
        given = out if slots is None else None
        call = recorded.build_call(head, arrays, angles, axes, given, norm, how)
        if slots is not None:
            call = builders["add_slots"](call, slots, cache_axes, out)
        path, results = choose.run_on_path(call)
        if path is not None and path.name == "triton":
            _keep_launch(call, signature, results)
    elif signature.saved is not None:
        back = partial(recorded.transpose, head, axes, how)
        results = recorded.record(results, back, signature.saved, arrays)
    if slots is not None:
        return results[0], out[1]  # the cache, of which there is a view
    return results[0] if how & ONE else results


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
    weights, outs = (), (out,) if how & ONE and out is not None else out
    fits_norm = norm is None or (type(norm) is QKNorm and not norm.round_between)
    if not (_fit_results(outs, slots, len(arrays)) and fits_norm):
        return None
    device = arrays[0].device
    if private.is_capturing(device):
        return None
    if norm is not None:
        described, weights = describe_norm(norm, len(arrays))
        options += (described,)
    saved = None
    if outs is None and norm is None and recorded.need_gradients(arrays):
        saved = _save_angles(angle_inputs)
        if saved is None:
            return None
    others = weights + angle_inputs + (() if slots is None else (slots,))
    signed = entry.sign_tensors(arrays, others, outs or (), saved is not None)
    if signed is None:
        return None
    stream = private.current_stream(device)  # as tables must know streams that read them
    key = signed, *options, choice.name, saved is None, slots is None, stream
    return Signature(key, arrays, weights, angle_inputs, outs, slots, saved)


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


def _launch(cached: Any, signature: Signature) -> Tensors | None:
    launch, table_ref = cached
    _, arrays, weights, angle_inputs, out, slots, _ = signature
    tables = None if table_ref is None else table_ref()
    if (table_ref is not None and tables is None) or not gpu.is_current(arrays[0]):
        return None
    if out is not None and out[0] is None:
        out = launch.allocate(arrays[0]), out[1]
    results: Tensors = launch(arrays, weights, angle_inputs, out, tables, slots)
    return results


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
    more = all_args[1] if own else None, call.slots
    launch = gpu.prepare_triton_launch(results, arrays, all_args[0], signature.weights, *more)
    if launch is not None:
        tables = weakref.ref(first.tables) if isinstance(first, TableLookup) else None
        CALLS.store(signature.key, (launch, tables))
