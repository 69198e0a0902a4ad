"""Axis names: one letter an axis, ``s`` tokens, ``h`` heads, ``d`` head_dim, others batch."""

from typing import NamedTuple

from rope_xp import _validate
from rope_xp._typing import Array, Namespace

_BATCH = "bcefgijklmno"


class Axes(NamedTuple):
    """Where the named axes of an array lie, counted from its front."""

    names: str
    tokens: int
    heads: int | None
    batch: tuple[int, ...]
    in_order: bool
    """Whether batch, then tokens, stand in the order in which positions have them."""
    after_heads: int
    """How many batch and tokens axes follow the heads axis."""
    insert_heads: tuple[object, ...]
    """The index that gives a table (batch..., tokens, r/2) an axis in place of heads."""


def _make(names: str) -> Axes:
    tokens = names.index("s")
    batch = tuple(i for i, name in enumerate(names) if name not in "shd")
    after_heads = len(names) - names.index("h") - 2 if "h" in names else len(names)
    return Axes(
        names=names,
        tokens=tokens,
        heads=names.index("h") if "h" in names else None,
        batch=batch,
        in_order=not batch or batch[-1] < tokens,
        after_heads=after_heads,
        insert_heads=(..., None, *(slice(None),) * (after_heads + 1)),
    )


def default_names(ndim: int) -> str:
    """Return the axes assumed where the caller names none: batch axes, then s, h, d."""
    return "sd" if ndim == 2 else _BATCH[: ndim - 3] + "shd"


# Looked up on every call. Never written to after import: torch.compile would guard on a change.
_DEFAULT = {ndim: _make(default_names(ndim)) for ndim in range(2, 13)}
_NAMED = {
    names: _make(names) for names in ("bshd", "bhsd", "sbhd", "shd", "hsd", "sd", "bsd", "sbd")
}


def parse(axes: str | None, ndim: int, argument: str) -> Axes:
    """Return where the axes of an ndim-dimensional array lie."""
    if axes is None:
        if ndim < 2:
            raise _validate.too_few_axes(argument, ndim)
        if ndim not in _DEFAULT:
            raise _validate.too_many_axes(argument, ndim)
        return _DEFAULT[ndim]
    found = _NAMED.get(axes) if isinstance(axes, str) else None
    if found is None:
        _validate.check_axes(axes)
        found = _make(axes)
    if len(found.names) != ndim:
        raise _validate.axes_do_not_fit(axes, argument, ndim)
    return found


def align(xp: Namespace, table: Array, axes: Axes) -> Array:
    """Bring a table (batch..., tokens, r/2) to the axes of the array that it broadcasts against."""
    if not axes.in_order:
        return _permute(xp, table, axes)
    if len(table.shape) <= axes.after_heads + 1:
        return table
    return table[axes.insert_heads]


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
