"""The path of every library and reference of all others: look up angles, rotate, write."""

from collections.abc import Callable

from rope_xp._core.call import AngleSource, Axes, Call, CosSin, TableLookup
from rope_xp._core.typing import Array, Namespace
from rope_xp._rotation import angles, pairs

NAME = "portable"


def cos_sin(call: Call, source: AngleSource) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2), in memory."""
    tables = angles.cos_sin(call.backend, source)
    return tables if isinstance(source, CosSin) else call.backend.materialize(*tables)


def for_kernel(
    call: Call, source: AngleSource, *, parts: bool = True, double: bool = True
) -> TableLookup | CosSin:
    """Return the source if kernels read it, else its cos and sin.

    ``parts`` and ``double`` say whether they read fractional positions and float64 tables.
    """
    if (
        isinstance(source, TableLookup)
        and (parts or source.part is None)
        and (double or call.backend.dtype_name(source.tables.low) != "float64")
    ):
        return source
    return source if isinstance(source, CosSin) else CosSin(*cos_sin(call, source))


def run(call: Call, rotate: Callable[..., Array] = pairs.rotate) -> tuple[Array, ...]:
    """Return the rotated arrays, in ``call.out`` if it is given.

    ``rotate`` is :func:`rope_xp._rotation.pairs.rotate`, or an equal that compiles better.
    """
    xp, results = call.backend.xp, []
    for arrays, _, source in call.groups(one_dtype=False):
        cos, sin = (align(xp, table, call.spec.axes) for table in cos_sin(call, source))
        results += [rotate(xp, x, cos, sin, call.spec) for x in arrays]
    if call.out is None:
        return tuple(results)
    for out, result in zip(call.out, results, strict=True):
        call.backend.write(out, result)
    return call.out


def align(xp: Namespace, table: Array, axes: Axes) -> Array:
    """Return a table (batch..., tokens, r/2) with all axes of an array, to broadcast against it."""
    if not axes.in_order:
        return _permute(xp, table, axes)
    missing = len(axes.names) - len(table.shape)
    if len(table.shape) > axes.after_heads + 1:
        return table[(*(None,) * (missing - 1), *axes.insert_heads)]
    return angles.with_axes(table, len(axes.names))


def _permute(xp: Namespace, table: Array, axes: Axes) -> Array:
    missing = len(axes.batch) + 2 - len(table.shape)
    table = table[(*(None,) * missing, ..., None)]
    # The table has batch, tokens, r/2, and a new axis of length 1.
    order = [0] * len(axes.names)
    for source, target in enumerate((*axes.batch, axes.tokens, len(order) - 1)):
        order[target] = source
    if axes.heads is None:
        table = table[..., 0]
    else:
        order[axes.heads] = len(order) - 1
    return xp.permute_dims(table, tuple(order))
