"""Checks of an operator's arguments: an exported program, or anybody, may call it with others."""

from typing import Any, NoReturn

import torch

from rope_xp._core.caches import cached
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import can_broadcast, check_one_of
from rope_xp._rotation.tables import table_shapes

from .library import NAMES, Tensors
from .op_args import N_TENSORS, OpArgs, build_spec

_LAYOUTS = ("interleaved", "half", "interleaved_to_half")


def check_arguments(arrays: Tensors, op_args: OpArgs, weights: Tensors = ()) -> None:
    """Check that a kernel can read and write these tensors, and reads nothing outside of them."""
    groups: Any = arrays, weights, op_args[:N_TENSORS]
    check_devices(*groups)
    if op_args.is_lookup and not all(x is None or x.is_contiguous() for x in op_args.tables):
        raise RopeError("a digit table of the operator is not contiguous; pass its contiguous()")
    xs, ws, tensors = (
        tuple([None if x is None else (NAMES.get(x.dtype), tuple(x.shape)) for x in group])
        for group in groups
    )
    _check_layouts(xs, ws, tensors, op_args[N_TENSORS:])


def check_devices(*arguments: Any) -> None:
    """Check that all tensors, and those in lists and tuples, lie on one device."""
    groups = [x if isinstance(x, list | tuple) else (x,) for x in arguments]
    devices = {x.device for group in groups for x in group if isinstance(x, torch.Tensor)}
    if len(devices) > 1:
        raise RopeError(
            f"tensors lie on {' and '.join(map(str, devices))}; move them to one device"
        )


@cached(512)
def _check_layouts(arrays: Any, weights: Any, tensors: Any, plain_args: Any) -> None:
    """Check pairs (dtype, shape)."""
    (dtype, shape), table, is_lookup = arrays[0], tensors[2], tensors[4] is not None
    pairs = table[1][-1] // (2 if is_lookup else 1) if table[1] else 0
    names, layout, offset, inverse = plain_args
    axes, rotary_dim = build_spec(names, layout, offset, inverse, 2 * pairs).axes, 2 * pairs
    check_one_of("layout", layout, _LAYOUTS)
    for other_dtype, other in arrays:
        lengths = [n for i, n in enumerate(other) if i != axes.heads]
        same = [n for i, n in enumerate(shape) if i != axes.heads] == lengths
        if dtype != other_dtype or dtype not in FLOATS or not same or len(other) != len(axes.names):
            _reject("an array", (other_dtype, other), f"like {(dtype, shape)}, but for heads")
    if not (pairs > 0 <= offset <= shape[-1] - rotary_dim):
        _reject("the slice", (offset, rotary_dim), f"inside head_dim={shape[-1]}")
    rows = tuple([shape[i] for i in axes.batch_tokens])
    _check_angles(tensors, "float64" if dtype == "float64" else "float32", rows, pairs)
    kinds = [(weights[0][0], (n,)) for n in (shape[-1], rotary_dim)] if weights else []
    if len(weights) not in (0, len(arrays)) or {*weights} - {*kinds} or len({*weights}) > 1:
        _reject("weights", weights, f"one for each array, of the shapes {kinds}, or none")


def _check_angles(tensors: Any, dtype: str, rows: tuple[int, ...], pairs: int) -> None:
    positions, part, table, table_2, table_3, frequencies, components = tensors
    if table_3 is None:
        _check_rows("cos", table, FLOATS, rows, (pairs,))
        _check_rows("sin", table_2, FLOATS, rows, (pairs,))
        return
    for i, shape in enumerate(table_shapes(pairs, 0)[:3]):
        if tensors[2 + i] != (dtype, shape):
            _reject(f"digit table {i}", tensors[2 + i], (dtype, shape))
    last = positions[1][-1:] if components and positions else ()
    if positions is not None:
        _check_rows("positions", positions, INTEGERS, rows, last)
    if components not in (None, ("int32", (pairs,))):
        _reject("components", components, ("int32", (pairs,)))
    if part is not None:
        _check_rows("part", part, FLOATS, rows, last)
        if positions is None or part[1] != positions[1] or frequencies != (dtype, (pairs,)):
            _reject("part", (part, frequencies), f"like positions, with {(pairs,)} frequencies")


def _check_rows(name: str, x: Any, dtypes: Any, rows: tuple[int, ...], last: Any) -> None:
    """Check that the axes of an array before its last ones broadcast to rows."""
    dtype, shape = x or (None, ())
    lead = shape[: len(shape) - len(last)]
    if dtype not in dtypes or not can_broadcast(lead, rows) or shape[len(lead) :] != last:
        _reject(name, x, f"numbers that broadcast to {(*rows, *last)}")


def _reject(name: str, got: object, expected: object) -> NoReturn:
    raise RopeError(f"{name} of the operator is {got}; it must be {expected}")
