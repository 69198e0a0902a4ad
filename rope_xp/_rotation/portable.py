"""The path of every library and reference of all others: look up angles, rotate, write.

RoFormer, arXiv 2104.09864, eq. 34, for the pair (x1, x2) and its angle a:

    y1 = x1 cos a - x2 sin a
    y2 = x2 cos a + x1 sin a

A layout reads r consecutive components as a matrix: (r/2, 2) for pairs (2i, 2i+1), (2, r/2) for
pairs (i, i + r/2). Compilers like that: XLA on a CPU takes longer to concatenate halves.
"""

from rope_xp._core.call import (
    AngleSource,
    Axes,
    Call,
    CosSin,
    RotationSpec,
    TableLookup,
    get_interleaved,
)
from rope_xp._core.typing import Array, Namespace
from rope_xp._rotation import angles, norm, slots

NAME = "portable"


def cos_sin(call: Call, source: AngleSource) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2), in memory."""
    tables = angles.cos_sin(call.backend, source)
    return tables if isinstance(source, CosSin) else call.backend.materialize(*tables)


def is_read_on_gpu(call: Call, lookup: TableLookup) -> bool:
    """Return whether kernels of GPUs look up angles: of integer positions, in float32 tables."""
    return lookup.part is None and call.backend.dtype_name(lookup.tables.low) != "float64"


def for_kernel(call: Call, source: AngleSource, *, on_gpu: bool = False) -> TableLookup | CosSin:
    """Return the source if kernels read it, else its cos and sin."""
    if isinstance(source, TableLookup):
        is_read = not on_gpu or is_read_on_gpu(call, source)
    else:
        is_read = on_gpu  # also in 16 bits
    return source if is_read else CosSin(*cos_sin(call, source))


def rotate(xp: Namespace, x: Array, cos: Array, sin: Array, spec: RotationSpec) -> Array:
    """Return x with its rotary slice rotated, in the dtype of cos and sin, and rounded once.

    cos and sin broadcast against x but for their last axis, of length r/2.
    """
    pairs, offset = cos.shape[-1], spec.rotary_offset
    rotary_dim = 2 * pairs
    whole = x.shape[-1] == rotary_dim
    y = x if whole else x[..., offset : offset + rotary_dim]
    interleaved_in, interleaved_out = get_interleaved(spec)
    if spec.inverse:
        sin = -sin
    lead = y.shape[:-1]
    y = xp.reshape(y, (*lead, pairs, 2) if interleaved_in else (*lead, 2, pairs))
    x1, x2 = (y[..., 0], y[..., 1]) if interleaved_in else (y[..., 0, :], y[..., 1, :])
    needs_cast = x.dtype != cos.dtype
    if needs_cast:
        x1, x2 = xp.astype(x1, cos.dtype), xp.astype(x2, cos.dtype)
    rotated = [x1 * cos - x2 * sin, x2 * cos + x1 * sin]
    y = xp.reshape(xp.stack(rotated, axis=-1 if interleaved_out else -2), (*lead, rotary_dim))
    if needs_cast:
        y = xp.astype(y, x.dtype)
    if whole:
        return y
    return xp.concat([x[..., :offset], y, x[..., offset + rotary_dim :]], axis=-1)


def run(call: Call) -> tuple[Array, ...]:
    """Return the rotated arrays, in ``call.out`` if it is given."""
    if call.slots is not None:  # where a kernel could not be compiled
        return slots.write_keys(call, run(slots.without_slots(call)))
    call = norm.round_between(call)
    xp, results, norm_spec = call.backend.xp, [], call.spec.norm
    for part in call.split(one_dtype=False):
        cos, sin = (align(xp, table, call.spec.axes) for table in cos_sin(call, part.angles[0]))
        if norm_spec is None:
            results += [rotate(xp, x, cos, sin, call.spec) for x in part.arrays]
        else:
            indices = range(len(part.arrays))
            results += [norm.rotate(part, norm_spec, i, cos, sin, rotate) for i in indices]
    if call.out is None:
        return tuple(results)
    for out, result in zip(call.out, results, strict=True):
        call.backend.write(out, result)
    return call.out


def align(xp: Namespace, table: Array, axes: Axes) -> Array:
    """Return a table (batch..., tokens, r/2) with all axes of an array, to broadcast against it."""
    if axes.in_order:
        behind = len(axes.names) - (0 if axes.heads is None else axes.heads + 1)
        if len(table.shape) <= behind:
            return angles.with_axes(table, len(axes.names))
        missing = len(axes.names) - len(table.shape) - 1
        return table[(*(None,) * missing, ..., None, *(slice(None),) * behind)]
    # The table gets batch, tokens, r/2, and a new axis of length 1.
    table = table[(*(None,) * (len(axes.batch) + 2 - len(table.shape)), ..., None)]
    order = [0] * len(axes.names)
    for source, target in enumerate((*axes.batch, axes.tokens, len(order) - 1)):
        order[target] = source
    if axes.heads is None:
        table = table[..., 0]
    else:
        order[axes.heads] = len(order) - 1
    return xp.permute_dims(table, tuple(order))
