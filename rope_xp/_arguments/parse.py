"""From arguments to a checked Call, before anything is computed."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp._arguments import checks
from rope_xp._arguments.axes import check_fit, parse_axes
from rope_xp._arguments.norm import check_norm
from rope_xp._arguments.out import check_out
from rope_xp._arguments.positions import (
    check_components,
    check_fractions,
    check_positions_shape,
    resolve_positions,
)
from rope_xp._core.call import (
    COUNTED,
    Axes,
    Call,
    CosSin,
    RotationSpec,
    TableLookup,
    get_position_range,
)
from rope_xp._core.errors import RopeError
from rope_xp._core.protocols import Rope, count_components
from rope_xp._core.slices import slice_of
from rope_xp._core.tables import TableKey, make_table_key
from rope_xp._core.typing import Array, Layout
from rope_xp._dispatch import find, how
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import angles as rotation_angles
from rope_xp._rotation import norm as rotation_norm

_PYTHON = (int, float, list, tuple, range)


def backend_of(values: Any) -> Backend | None:
    """Return the backend of an array, None for Python numbers and sequences of them."""
    return None if type(values) in _PYTHON else find.find_backend(values)


def device_backend_of(values: Any) -> Backend | None:
    """Return the backend of an array, None for numpy arrays and Python numbers."""
    # Dynamo cannot look up the class of the first numpy array that it traces.
    return None if type(values) is np.ndarray else backend_of(values)


def read_operand(
    backend: Backend, name: str, x: Array, argument: str, values: Any
) -> tuple[Backend, Array]:
    """Return the backend and array of values: that of x, on its device, or else numpy."""
    owner = device_backend_of(values)
    if (owner is None or owner.host) and backend.is_compiling():
        return backend, backend.asarray_in_trace(values, backend.device(x))
    if owner is None:
        values = np.asarray(values)
        owner = find.require_backend(values, argument)
    checks.check_same_library_and_device(backend, name, x, owner, argument, values)
    return owner, values


def check_arrays(
    arrays: tuple[Array, ...], axes: str | None, *, has_k_positions: bool = False
) -> tuple[Backend, Axes, list[bool]]:
    """Return the backend and axes of x, or of q and k, and whether each is of float64."""
    x, name = arrays[0], "x" if len(arrays) == 1 else "q"
    backend = find.require_backend(x, name)
    doubles = [checks.check_float(backend, name, x) == "float64"]
    where = parse_axes(axes, len(x.shape), name)
    for k in arrays[1:]:
        checks.check_library(backend, "q", x, "k", k)
        doubles.append(checks.check_float(backend, "k", k) == "float64")
        check_fit(where, "k", len(k.shape))
        checks.check_pair_shapes(where, x.shape, k.shape, has_k_positions)
    return backend, where, doubles


def normalize(
    backend: Backend,
    rope: Rope,
    arrays: tuple[Array, ...],
    axes: str | None,
    norm: Any,
    *,
    has_k_positions: bool = False,
) -> tuple[Array, ...] | None:
    """Return arrays after a norm that rounds, which then rotate without; None for other norms."""
    if not getattr(norm, "round_between", False) or backend.takes_calls_whole:
        return None
    backend, where, _ = check_arrays(arrays, axes, has_k_positions=has_k_positions)
    slice_ = slice_of(rope, arrays[0].shape[-1])
    spec, weights = check_norm(backend, arrays, where, slice_[0], norm)
    rotation = RotationSpec(where, rope.layout, *slice_, inverse=False)
    return rotation_norm.normalize_rounded(backend, arrays, weights, rotation, spec)  # type: ignore[arg-type]  # of a norm


def rotate(
    rope: Rope,
    arrays: tuple[Array, ...],
    positions: Any,
    axes: str | None,
    out: Any,
    inverse: bool = False,
    norm: Any = None,
    k_positions: Any = None,
) -> Call:
    """Return the call that rotates x, or q and k."""
    x, y, has_k_positions = arrays[0], arrays[-1], k_positions is not None
    backend, where, doubles = check_arrays(arrays, axes, has_k_positions=has_k_positions)
    slice_ = slice_of(rope, x.shape[-1])
    table_key = make_table_key(rope, x.shape[-1], inverse, doubles[0])
    angles = [_lookup(backend, table_key, x, where, positions, "positions")]
    if has_k_positions or doubles[0] != doubles[-1]:
        named = (k_positions, "k_positions") if has_k_positions else (positions, "positions")
        k_key = make_table_key(rope, y.shape[-1], inverse, doubles[-1])
        angles.append(_lookup(backend, k_key, y, where, *named))
    norm, weights = check_norm(backend, arrays, where, slice_[0], norm)
    inputs = _list_inputs(positions=angles[0], k_positions=angles[-1])
    out = check_out(backend, arrays, out, inputs, weights)
    spec = RotationSpec(where, rope.layout, *slice_, inverse, norm)
    return Call(backend, arrays, tuple(angles), out, spec, weights)


def rotate_by_rope(
    rope: Rope,
    arrays: tuple[Array, ...],
    positions: Any,
    axes: Any,
    out: Any,
    norm: Any,
    flags: int,
    k_positions: Any = None,
) -> Call:
    """Return the call that the entry would run."""
    call = rotate(rope, arrays, positions, axes, out, flags & how.INVERSE != 0, norm, k_positions)
    return transpose(call) if flags & how.TRANSPOSED else call


def transpose(call: Call) -> Call:
    """Return the call of the derivative: back by the same angles and attention factor."""
    return replace(call, spec=call.spec._replace(inverse=not call.spec.inverse))


how.builders["rotate_by_rope"] = rotate_by_rope


def check_same_pairs(rope: Rope, to: Rope, head_dim: int) -> tuple[Layout, int, int]:
    """Return the layout and slice that two ropes write, which has to be one."""
    # x lies in the layout that the rotation wrote.
    layouts: list[Layout] = [
        "interleaved" if r.layout == "interleaved" else "half" for r in (rope, to)
    ]
    slice_, new_slice = slice_of(rope, head_dim), slice_of(to, head_dim)
    if (slice_, layouts[0]) != (new_slice, layouts[1]):
        raise RopeError(
            "rerotate needs ropes that rotate the same pairs; (rotary_dim, rotary_offset, layout "
            f"of the result) is {(*slice_, layouts[0])}, and for to= {(*new_slice, layouts[1])}"
        )
    return layouts[0], *slice_


def rerotate(
    rope: Rope, to: Rope, x: Array, old_positions: Any, new_positions: Any, axes: Any, out: Any
) -> Call:
    """Return the call that composes the inverse of one rotation, attention factor too, and another.

    Its angles are computed here.
    """
    backend, where, (double,) = check_arrays((x,), axes)
    head_dim = x.shape[-1]
    slice_ = check_same_pairs(rope, to, head_dim)
    old_key = make_table_key(rope, head_dim, inverse=True, double=double)
    old = _lookup(backend, old_key, x, where, old_positions, "old_positions")
    new_key = make_table_key(to, head_dim, inverse=False, double=double)
    new = _lookup(backend, new_key, x, where, new_positions, "new_positions")
    inputs = _list_inputs(old_positions=old, new_positions=new)
    out = check_out(backend, (x,), out, inputs)
    spec = RotationSpec(where, *slice_, inverse=False)
    tables = rotation_angles.subtract(backend, backend.cos_sin(new), backend.cos_sin(old))
    return Call(backend, (x,), (CosSin(*tables),), out, spec)


def cos_sin(
    rope: Rope, positions: Any, head_dim: int, xp: Any, device: Any, dtype: Any
) -> tuple[TableLookup, Backend]:
    """Return the lookup of cos and sin for positions of any shape, and its backend."""
    owner = backend_of(positions)
    backend = find.require_backend_of_namespace(np if xp is None else xp)
    if owner is not None and (xp is None or owner.compatible_backend is backend):
        backend = owner
    double = dtype is not None and bool(dtype == backend.xp.float64)
    if dtype is not None and backend.numpy_dtypes:
        double = np.dtype(dtype) == np.float64  # numpy's many names for it, such as float and "d"
    like = positions
    if owner is not backend or device is not None:
        put = backend.asarray_in_trace if backend.is_compiling() else backend.asarray
        like = put(np.zeros((), np.float64 if double else np.float32), device)
    table_key = make_table_key(rope, head_dim, inverse=False, double=double)
    return position_lookup(backend, table_key, positions, owner, like), backend


def position_lookup(
    backend: Backend, table_key: TableKey, positions: Any, owner: Backend | None, like: Array
) -> TableLookup:
    """Return the lookup of positions of any shape, which belong to no array."""
    whole, part, position_range = resolve_positions(
        backend, positions, owner, like, table_key.double, "positions"
    )
    check_fractions(backend, "positions", part, table_key)
    components = count_components(table_key.rope)
    if components:
        check_components("positions", tuple(whole.shape), components)
    tables, device = backend.tables(table_key, like), backend.device(like)
    return TableLookup(tables, whole, part, device, 0, position_range, components, table_key)


def _lookup(
    backend: Backend, table_key: TableKey, x: Array, axes: Axes, positions: Any, argument: str
) -> TableLookup:
    tokens = x.shape[axes.tokens]
    components = count_components(table_key.rope)
    whole = part = None
    if positions is None:
        if tokens is None:
            tokens = backend.axis_length(x, axes.tokens)
        # To compare symbolic lengths fails or breaks the graph. Those of Dynamo look like an int.
        is_known = type(tokens) is int and not backend.is_compiling()
        position_range = get_position_range(0, tokens) if is_known else COUNTED
    else:
        whole, part, position_range = resolve_positions(
            backend, positions, device_backend_of(positions), x, table_key.double, argument
        )
        check_fractions(backend, argument, part, table_key)
        rows = whole.shape
        if len(rows) != 1 or rows[0] != tokens or components:
            batch = tuple([x.shape[i] for i in axes.batch])
            check_positions_shape(argument, tuple(rows), components, batch, tokens)
            whole, part = add_token_axis(whole, part, components)
    tables, device = backend.tables(table_key, x), backend.device(x)
    return TableLookup(tables, whole, part, device, tokens, position_range, components, table_key)


def _list_inputs(**lookups: TableLookup) -> list[tuple[str, Array | None]]:
    """Return positions as kernels read them, perhaps in memory of the caller, by argument."""
    return [(name, x) for name, lookup in lookups.items() for x in (lookup.whole, lookup.part)]


def add_token_axis(whole: Array, part: Array | None, components: int) -> tuple[Array, Array | None]:
    """Return whole and fractional parts with an axis of tokens, where there is one number."""
    if len(whole.shape) != bool(components):
        return whole, part
    return whole[..., None], None if part is None else part[..., None]
