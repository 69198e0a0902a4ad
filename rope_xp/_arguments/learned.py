"""From positions and arrays of frequencies to a checked Call."""

from typing import Any

import numpy as np

from rope_xp._arguments import checks, fields, parse, parse_tables
from rope_xp._arguments.positions import check_positions_shape, read_host, wrong_dtype
from rope_xp._core.call import Axes, Call, RotationSpec
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import resolve_slice
from rope_xp._core.typing import Array, Device, Layout
from rope_xp._dispatch import find, how
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import products
from rope_xp._rotation.angles import with_axes

_SHAPES = "(r/2,), (heads, r/2) or (components, heads, r/2)"


def apply_frequencies(
    q: Array, k: Array, positions: Any, frequencies: Any, layout: Layout, axes: Any
) -> Call:
    """Return the call that rotates q and k by the products of positions and frequencies."""
    fields.check_layout(layout)
    backend, where, doubles = parse.check_arrays((q, k), axes)
    frequencies = _check_frequencies(backend, q, frequencies)
    shape = tuple(frequencies.shape)
    slice_ = resolve_slice(q.shape[-1], 2 * shape[-1], 0, None)
    components = shape[0] if len(shape) == 3 else 0
    positions = _check_positions(backend, q, where, positions, components)
    if per_head := len(shape) > 1 and shape[-2] != 1:
        if where.heads is None:
            raise RopeError(
                f"frequencies has {shape[-2]} heads, but axes={where.names!r} has no heads axis "
                "'h'; pass frequencies of shape (r/2,), or arrays with heads"
            )
        checks.check_heads("frequencies", shape[-2], where, {"q": q, "k": k})
    elif len(shape) > 1:
        frequencies = frequencies[..., 0, :]
    if not components:
        positions, frequencies = positions[None, ...], frequencies[None, ...]
    target = (backend, backend.device(q), any(doubles))
    tables = _compute_tables(target, positions, frequencies, len(where.batch), per_head)
    angles = parse_tables.cast_tables(backend, tables, doubles)
    return Call(backend, (q, k), angles, None, RotationSpec(where, layout, *slice_, False))


how.builders["apply_frequencies"] = apply_frequencies


def _check_frequencies(backend: Backend, q: Array, frequencies: Any) -> Array:
    """Return frequencies as an array of numpy or of the library of q."""
    owner = find.require_backend(frequencies, "frequencies")
    checks.check_float(owner, "frequencies", frequencies)
    shape = tuple(frequencies.shape)
    if not 1 <= len(shape) <= 3 or 0 in shape:
        raise RopeError(f"frequencies has shape {shape}; it must be {_SHAPES}, radians per token")
    checks.check_same_library_and_device(backend, "q", q, owner, "frequencies", frequencies)
    if owner.host and backend.is_compiling():
        return backend.asarray_in_trace(frequencies, backend.device(q))
    if owner.host:
        largest = float(np.abs(np.asarray(frequencies, np.float64)).max())
        if not largest < products.LARGEST:
            raise RopeError(
                "frequencies must be finite, with absolute values below "
                f"{products.LARGEST:g}; the largest is {largest:g}"
            )
    return frequencies


def _check_positions(
    backend: Backend, q: Array, axes: Axes, positions: Any, components: int
) -> Array:
    """Return positions as an array of numpy or of the library of q."""
    tokens = q.shape[axes.tokens]
    if positions is None:
        length = backend.axis_length(q, axes.tokens) if tokens is None else tokens
        indices = backend.arange(length, backend.device(q))
        return backend.xp.stack([indices] * components) if components else indices
    owner = parse.device_backend_of(positions)
    if (owner is None or owner.host) and not backend.is_compiling():
        read_host(positions, np.int64, True, "positions")
    owner, positions = parse.read_operand(backend, "q", q, "positions", positions)
    if owner.dtype_name(positions) not in (*FLOATS, *INTEGERS):
        raise wrong_dtype("positions", owner.dtype_name(positions))
    batch = tuple([q.shape[i] for i in axes.batch])
    check_positions_shape("positions", tuple(positions.shape), components, batch, tokens)
    return positions[..., None] if len(positions.shape) == bool(components) else positions


def _compute_tables(
    target: tuple[Backend, Device, bool],
    positions: Array,
    frequencies: Array,
    batch: int,
    per_head: bool,
) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2), or ``per_head`` (batch..., tokens, heads, r/2).

    Positions and frequencies have a leading axis of components.
    """
    backend, device, double = target
    p_owner = find.require_backend(positions, "positions")
    f_owner = find.require_backend(frequencies, "frequencies")

    def place(x: Array, owner: Backend) -> Array:
        """Return x on the device of the arrays, in the width of the angles."""
        x = owner.xp.astype(x, owner.xp.float64 if double else owner.xp.float32, copy=False)
        return x if owner is backend else backend.asarray(x, device)

    def place_positions(x: Array, c: int) -> Array:
        x = with_axes(place(x[c, ...], p_owner), batch + 1)
        return x[..., None, None] if per_head else x[..., None]

    def place_frequencies(x: Array, c: int) -> Array:
        return with_axes(place(x[c, ...], f_owner), batch + 2 + per_head)

    p_constant, f_constant = p_owner.stop_gradient(positions), f_owner.stop_gradient(frequencies)
    base = products.DOUBLE if double else products.SINGLE
    digits, weights, rest = products.split_positions(p_owner, p_constant, base)
    factors = products.build_multipliers(f_owner, f_constant, weights, base)
    terms = []
    for c in range(positions.shape[0]):
        below = None if rest is None else place_positions(rest, c)
        position = [place_positions(x, c) for x in digits], weights, below
        multipliers = [
            products.Multiplier(*(place_frequencies(part, c) for part in factor))
            for factor in factors
        ]
        f = place_frequencies(f_constant, c)
        terms.append(products.Term(products.PositionDigits(*position), multipliers, f))
    tables = products.cos_sin(backend, terms, double)
    if p_constant is positions and f_constant is frequencies:
        return tables
    pairs = [
        products.Factors(
            *(place_positions(x, c) for x in (positions, p_constant)),
            *(place_frequencies(x, c) for x in (frequencies, f_constant)),
        )
        for c in range(positions.shape[0])
    ]
    return products.follow(backend.xp, *tables, pairs)
