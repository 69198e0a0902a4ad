"""Launches of Triton's kernel for calls like earlier ones.

A key holds what the native module reads of tensors; without that module all calls are planned.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, TableLookup
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch import heads
from rope_xp._rotation import portable
from rope_xp_backends.gpu.calls import (
    UserCall,
    find_launch,
    give_results,
    keep_launch,
    read_call,
    run_slowly,
)

from . import entry, gpu, private, recorded
from .library import Tensors
from .op_args import build_op_args

_INTEGERS = (torch.int64, torch.int32)
CALLS = BoundedCache(f"{__name__}.CALLS", 512)


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    angles = positions, k_positions = call[3:5]
    given = angles if k_positions is not None else () if positions is None else angles[:1]
    for p in given:
        if type(p) is not torch.Tensor or p.dtype not in _INTEGERS:
            return None
    return _rotate(call[:1], call[1:], angles, given)


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
    user_call = read_call(head, rest, angle_inputs)
    device = rest[0].device
    if user_call is None or private.is_capturing(device):
        return None
    arrays, saved = user_call.arrays, None
    if user_call.out is None and rest[6] is None and recorded.need_gradients(arrays):
        saved = _save_angles(angle_inputs)
        if saved is None:
            return None
        user_call = user_call._replace(angle_inputs=saved)
    signed = entry.sign_tensors(arrays, user_call.others, user_call.out or (), saved is not None)
    if signed is None:
        return None
    stream = private.current_stream(device)  # as tables must know streams that read them
    key = signed, *user_call.options, saved is None, stream
    try:
        kept = find_launch(CALLS, key)
    except TypeError:  # an option without a hash, for which the slow path raises
        return None
    results = None if kept is None else _launch(*kept, user_call)
    if results is None:
        call, path, results = run_slowly(head, rest, angles)
        if path is not None and path.name == "triton":
            _keep_launch(key, call, user_call, results)
    elif saved is not None:
        back = partial(recorded.transpose, head, rest[4], rest[-1])
        results = recorded.record(results, back, saved, arrays)
    return give_results(results, rest)


def _save_angles(angle_inputs: Tensors) -> Tensors | None:
    """Return what a gradient needs of angles, None for positions of q and of k."""
    integers = [x for x in angle_inputs if not x.is_floating_point()]
    if integers and len(angle_inputs) > 1:
        return None
    return recorded.copy_positions(integers[0]) if integers else angle_inputs


def _launch(
    launch: gpu.TritonLaunch, tables: DigitTables | None, user_call: UserCall
) -> Tensors | None:
    arrays, weights, angle_inputs, given, slots, _ = user_call
    if not gpu.is_current(arrays[0]):
        return None
    out: Any = given
    if given is not None and given[0] is None:
        out = launch.allocate(arrays[0]), given[1]
    return launch(arrays, weights, angle_inputs, out, tables, slots)


def _keep_launch(key: Hashable, call: Call, user_call: UserCall, results: Tensors) -> None:
    """Keep the launch of a call that has run, if one suffices."""
    arrays, first = call.arrays, call.angles[0]
    own = user_call.angle_inputs[1:] if isinstance(first, TableLookup) else ()
    if len(call.angles) != 1 + len(own) or arrays[0].dtype != arrays[-1].dtype:
        return
    if heads.differ_by_head(call):
        return
    if call.slots is not None and call.slots.numbers is not user_call.slots:
        return  # of another dtype, or in host memory
    if any(x.stride(-1) != 1 for x in (*arrays, *results, *user_call.weights)):
        return
    given = (*user_call.angle_inputs, None)
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
    launch = gpu.prepare_triton_launch(results, arrays, all_args[0], user_call.weights, *more)
    if launch is not None:
        keep_launch(CALLS, key, launch, first)
