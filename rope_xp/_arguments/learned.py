"""From positions and frequencies that are arrays to a checked Call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._arguments import fields, messages, parse
from rope_xp._arguments.axes import parse_axes
from rope_xp._arguments.out import check_out
from rope_xp._arguments.positions import check_positions_shape, no_numbers, read_host
from rope_xp._arguments.slices import resolve_slice
from rope_xp._core.call import Axes, Call, CosSin, RotationSpec
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import products
from rope_xp._rotation.angles import with_axes

_SHAPES = "(r/2,), (heads, r/2) or (components, heads, r/2)"


def pair(
    q: Array, k: Array, positions: Any, frequencies: Any, layout: Layout, axes: Any, out: Any
) -> Call:
    """Return the call that rotates q and k by the products of positions and frequencies."""
    fields.check_layout(layout)
    backend, where, double, k_double = parse.check_pair(q, k, axes, False)
    frequencies = _frequencies(backend, q, frequencies)
    shape = tuple(frequencies.shape)
    slice_ = resolve_slice(q.shape[-1], 2 * shape[-1], 0, None)
    components = shape[0] if len(shape) == 3 else 0
    positions = _positions(backend, q, where, positions, components)
    place, group = None, 1
    if len(shape) > 1 and shape[-2] != 1:
        group = _group(where, shape[-2], q, k)
        place = sum(i < where.heads for i in where.batch)  # type: ignore[operator]  # _group asks
        where = _heads_as_batch(where)
    elif len(shape) > 1:
        frequencies = frequencies[..., 0, :]
    if out is not None:
        out = check_out(backend, ("q", "k"), (q, k), out)
    if not components:
        positions, frequencies = positions[None, ...], frequencies[None, ...]
    xp, like = backend.xp, (backend, backend.device(q), double or k_double)
    axes_of = _Axes(len(where.batch), place)
    tables = products.cos_sin(backend, _terms(like, positions, frequencies, axes_of), like[-1])
    dtypes = [xp.float64 if each else xp.float32 for each in (double, k_double)]
    angles = [CosSin(*(xp.astype(table, dtypes[1], copy=False) for table in tables))]
    if group > 1 or double != k_double:
        both = (_repeat_heads(backend, table, place, group) for table in tables)
        angles.insert(0, CosSin(*(xp.astype(table, dtypes[0], copy=False) for table in both)))
    return Call(backend, (q, k), tuple(angles), out, RotationSpec(where, layout, *slice_, False))


# --- checks --------------------------------------------------------------------------------------


def _frequencies(backend: Backend, q: Array, frequencies: Any) -> Array:
    """Return frequencies as an array of numpy or of the library of q."""
    owner = find.require_backend(frequencies, "frequencies")
    messages.check_float(owner, "frequencies", frequencies)
    shape = tuple(frequencies.shape)
    if not 1 <= len(shape) <= 3 or 0 in shape:
        msg = f"frequencies has shape {shape}; it must be {_SHAPES}, in radians per token"
        raise RopeError(msg)
    if owner is backend or owner is backend.compatible_backend:
        messages.check_same_device(backend, "q", q, "frequencies", frequencies)
    elif not owner.host:
        raise messages.different_libraries("q", backend, "frequencies", owner)
    if owner.host and backend.is_compiling():
        return backend.asarray_in_trace(frequencies, backend.device(q))
    if owner.host:
        largest = float(np.abs(np.asarray(frequencies, np.float64)).max())
        if not largest < products.LARGEST:
            msg = (
                f"frequencies must be finite and of modulus below {products.LARGEST:g}; the "
                f"largest modulus is {largest:g}"
            )
            raise RopeError(msg)
    return frequencies


def _group(axes: Axes, heads: int, q: Array, k: Array) -> int:
    """Return how many query heads use the frequencies of one key head."""
    if axes.heads is None:
        msg = (
            f"frequencies has {heads} heads, and axes={axes.names!r} has no axis of heads 'h'; "
            "give frequencies (r/2,), or arrays with heads"
        )
        raise RopeError(msg)
    queries, keys = q.shape[axes.heads], k.shape[axes.heads]
    if heads != keys or queries % keys:
        msg = (
            f"frequencies has {heads} heads, q {queries} and k {keys}; it needs those of k, each "
            "of which serves equally many heads of q: a query and a key that meet must turn alike"
        )
        raise RopeError(msg)
    return int(queries // keys)


def _heads_as_batch(axes: Axes) -> Axes:
    """Return axes with the heads as one more batch axis, so that each head has its own angles."""
    free = next(name for name in "bcefgijklmnopqrtuvwxyz" if name not in axes.names)
    names = axes.names.replace("h", free)
    return parse_axes(names, len(names), "q")


def _positions(backend: Backend, q: Array, axes: Axes, positions: Any, components: int) -> Array:
    """Return positions as an array of numpy or of the library of q."""
    tokens = q.shape[axes.tokens]
    if positions is None:
        length = backend.axis_length(q, axes.tokens) if tokens is None else tokens
        indices = backend.arange(length, backend.device(q))
        return backend.xp.stack([indices] * components) if components else indices
    owner = parse.find_owner_of_array(positions)
    if (owner is None or owner.host) and backend.is_compiling():
        positions, owner = backend.asarray_in_trace(positions, backend.device(q)), backend
    elif owner is None or owner.host:
        read_host(positions, np.int64, True, "positions")
        positions = np.asarray(positions)
        owner = find.require_backend(positions, "positions")
    elif owner is backend or owner is backend.compatible_backend:
        messages.check_same_device(backend, "q", q, "positions", positions)
    else:
        raise messages.different_libraries("q", backend, "positions", owner)
    if owner.dtype_name(positions) not in (*FLOATS, *INTEGERS):
        raise no_numbers("positions", owner.dtype_name(positions))
    batch = tuple([q.shape[i] for i in axes.batch])
    check_positions_shape("positions", tuple(positions.shape), components, batch, tokens)
    return positions[..., None] if len(positions.shape) == bool(components) else positions


# --- terms ---------------------------------------------------------------------------------------


class _Axes(NamedTuple):
    """The axes of angles: batch, tokens, pairs."""

    batch: int
    heads: int | None
    """Which of the batch axes holds heads that have frequencies of their own."""

    def align_positions(self, x: Array) -> Array:
        """Align an array (batch..., tokens) with the angles."""
        if self.heads is None:
            return with_axes(x, self.batch + 1)[..., None]
        x = with_axes(x, self.batch)
        return x[(*(slice(None),) * self.heads, None, ..., None)]

    def align_frequencies(self, x: Array) -> Array:
        """Align an array (heads, r/2) or (r/2,) with the angles."""
        if self.heads is None:
            return with_axes(x, self.batch + 2)
        after = self.batch - self.heads
        return x[(*(None,) * self.heads, slice(None), *(None,) * after, slice(None))]


def _terms(
    like: tuple[Backend, Device, bool], positions: Array, frequencies: Array, axes: _Axes
) -> list[products.Term]:
    """Return a term for each component, the leading axis of positions and frequencies."""
    backend, device, double = like
    base = products.DOUBLE if double else products.SINGLE

    def place(x: Array, owner: Backend, align: Callable[[Array], Array]) -> Array:
        """Return x on the device of the arrays, in the width of the angles."""
        xp = owner.xp
        x = align(xp.astype(x, xp.float64 if double else xp.float32, copy=False))
        return x if owner is backend else backend.asarray(x, device)

    of_p, of_f = (
        find.require_backend(positions, "positions"),
        find.require_backend(frequencies, "it"),
    )
    still, fixed = of_p.stop_gradient(positions), of_f.stop_gradient(frequencies)
    digits = products.split_positions(of_p, still, base)
    factors = products.build_multipliers(of_f, fixed, digits.weights, base)
    terms = []
    for c in range(positions.shape[0]):
        split = products.PositionDigits(
            [place(x[c, ...], of_p, axes.align_positions) for x in digits.digits],
            digits.weights,
            None if digits.rest is None else place(digits.rest[c, ...], of_p, axes.align_positions),
        )
        multipliers = [
            products.Multiplier(*(place(x[c, ...], of_f, axes.align_frequencies) for x in each))
            for each in factors
        ]
        p = place(positions[c, ...], of_p, axes.align_positions)
        f = place(frequencies[c, ...], of_f, axes.align_frequencies)
        p_fixed, f_fixed = p, f
        if still is not positions:
            p_fixed = place(still[c, ...], of_p, axes.align_positions)
        if fixed is not frequencies:
            f_fixed = place(fixed[c, ...], of_f, axes.align_frequencies)
        terms.append(
            products.Term(
                split, multipliers, products.Variable(p, p_fixed), products.Variable(f, f_fixed)
            )
        )
    return terms


def _repeat_heads(backend: Backend, table: Array, heads: int | None, group: int) -> Array:
    """Return a table of key heads, repeated for the group of query heads that each serves."""
    if group == 1 or heads is None:
        return table
    xp, shape = backend.xp, tuple(table.shape)
    wider = table[(*(slice(None),) * (heads + 1), None, ...)]
    wider = xp.broadcast_to(wider, (*shape[: heads + 1], group, *shape[heads + 1 :]))
    return xp.reshape(wider, (*shape[:heads], group * shape[heads], *shape[heads + 1 :]))
