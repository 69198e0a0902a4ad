"""Tables with a heads axis: heads become a batch axis, so that no path has to know of them.

Heads may share angles, as the queries of a key do. Where a reshaped array is a view, the heads axis
is split: those that share angles stay heads, and tables are read where they lie. Elsewhere tables
are repeated.
"""

from dataclasses import replace

from rope_xp._core.call import AngleSource, Call, CosSin, make_axes
from rope_xp._core.typing import Array
from rope_xp._rotation.norm import align_weight


def differ_by_head(call: Call) -> bool:
    """Return whether tables of a call have a heads axis."""
    return any(_has_heads(source, call) for source in call.angles)


def _has_heads(source: AngleSource, call: Call) -> bool:
    names = call.spec.axes.names
    return isinstance(source, CosSin) and "h" in names and len(source.cos.shape) == len(names)


def split_heads(call: Call) -> Call:
    """Return the same rotation with a batch axis for the heads of tables."""
    xp, axes, arrays, out = call.backend.xp, call.spec.axes, call.arrays, call.out
    at, ndim, sources = axes.heads or 0, len(axes.names), call.angles
    # Two arrays have one source or two: -1 is the last of either.
    counts, groups = [], []
    for i, x in enumerate(arrays):
        source: CosSin = sources[-i]  # type: ignore[assignment]  # a lookup has no heads
        counts.append(source.cos.shape[-2] if _has_heads(source, call) else 1)
        groups.append(x.shape[at] // max(counts[i], 1))
    splits = any(group != 1 for group in groups)
    if splits and (not call.backend.assigns_by_index or call.backend.sharded_executor is not None):
        splits = False
        sources = tuple([_repeat_heads(call, sources[-i], group) for i, group in enumerate(groups)])
    letter = next(name for name in "bcefgijklmnopqrtuvwxyz" if name not in axes.names)
    before = sum(i < at for i in axes.batch)
    behind = len(axes.batch) - before + 2  # axes of a table

    def split(x: Array, i: int) -> Array:
        shape = (*x.shape[:at], counts[i], groups[i], *x.shape[at + 1 :])
        return xp.reshape(x, shape) if splits else x

    def split_weight(weight: Array | None, i: int) -> Array | None:
        if weight is None or len(weight.shape) == 1:
            return weight
        return split(align_weight(xp, weight, axes), i)

    def move_heads(table: Array) -> Array:
        if len(table.shape) == ndim:
            order = *range(before), ndim - 2, *range(before, ndim - 2), ndim - 1
            return xp.permute_dims(table, order)
        index = (..., None, *(slice(None),) * behind)
        return table[index] if len(table.shape) >= behind else table

    new = tuple([split(x, i) for i, x in enumerate(arrays)])
    if out is not None:
        out = tuple([new[i] if y is arrays[i] else split(y, i) for i, y in enumerate(out)])
    return replace(
        call,
        arrays=new,
        angles=tuple([CosSin(move_heads(s.cos), move_heads(s.sin)) for s in sources]),  # type: ignore[union-attr]  # a lookup has no heads
        out=out,
        spec=call.spec._replace(axes=make_axes(axes.names.replace("h", letter + "h" * splits))),
        weights=tuple([split_weight(weight, i) for i, weight in enumerate(call.weights)]),
    )


def merge_heads(call: Call, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return results in the shapes of a call that was split."""
    if call.out is not None:
        return call.out
    pairs = zip(call.arrays, results, strict=True)
    reshape = call.backend.xp.reshape
    return tuple([y if len(x.shape) == len(y.shape) else reshape(y, x.shape) for x, y in pairs])


def _repeat_heads(call: Call, source: AngleSource, group: int) -> AngleSource:
    if group == 1 or not isinstance(source, CosSin) or not _has_heads(source, call):
        return source
    xp, axis = call.backend.xp, len(source.cos.shape) - 2
    return CosSin(*(xp.repeat(t, group, axis=axis) for t in (source.cos, source.sin)))
