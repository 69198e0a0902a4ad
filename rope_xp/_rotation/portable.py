"""The path that every library has: look the angles up, rotate, write."""

from collections.abc import Callable

from rope_xp._core.call import AngleSource, Axes, Call, CosSin, TableLookup
from rope_xp._core.typing import Array, Namespace
from rope_xp._rotation import angles, pairs

NAME = "portable"


def cos_sin(call: Call, source: AngleSource) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2), computed no more than once."""
    made = angles.cos_sin(call.backend, source)
    return made if isinstance(source, CosSin) else call.backend.computed_once(*made)


def for_kernel(
    call: Call, source: AngleSource, *, parts: bool = True, double: bool = True
) -> TableLookup | CosSin:
    """Return a source whose angles a kernel looks up, or else those angles, computed here.

    The rest says whether the kernel knows positions with fractions, and tables in float64.
    """
    if (
        isinstance(source, TableLookup)
        and (parts or source.part is None)
        and (double or call.backend.dtype_name(source.tables.low) != "float64")
    ):
        return source
    return source if isinstance(source, CosSin) else CosSin(*cos_sin(call, source))


def run(call: Call, rotate: Callable[..., Array] = pairs.rotate) -> tuple[Array, ...]:
    """Return the rotated arrays, written to ``call.out`` if it is given.

    ``rotate`` stands for :func:`rope_xp._rotation.pairs.rotate`, where a compiler wants it in other
    words.
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
    """Bring a table (batch..., tokens, r/2) to the axes of the array that it broadcasts against.

    All of them, as jax can be told to refuse products of arrays that differ in their number.
    """
    if not axes.in_order:
        return _permute(xp, table, axes)
    missing = len(axes.names) - len(table.shape)
    if len(table.shape) > axes.after_heads + 1:
        return table[(*(None,) * (missing - 1), *axes.insert_heads)]
    return angles.with_axes(table, len(axes.names))


def _permute(xp: Namespace, table: Array, axes: Axes) -> Array:
    missing = len(axes.batch) + 2 - len(table.shape)
    table = table[(*(None,) * missing, ..., None)]
    # In table: batch, tokens, r/2, and the axis of length 1 just added.
    order = [0] * len(axes.names)
    for source, target in enumerate((*axes.batch, axes.tokens, len(order) - 1)):
        order[target] = source
    if axes.heads is None:
        table = table[..., 0]
    else:
        order[axes.heads] = len(order) - 1
    return xp.permute_dims(table, tuple(order))
