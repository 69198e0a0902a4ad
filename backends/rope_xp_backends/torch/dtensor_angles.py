"""The angles of the tokens in one process's shard of a DTensor.

Plain positions become a replicated DTensor, sharded along tokens and batch as the array is. That
is a local slice by torch itself, so uneven and empty shards and several mesh dimensions agree.
"""

from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import AngleSource, Call, RelativeAngles, TableLookup, leaves, with_leaves

from . import BACKEND as _PLAIN
from .library import Tensors
from .paths import angles_need_gradient

Placements: TypeAlias = tuple[Placement, ...]


def local_angles(call: Call, arrays: tuple[Any, ...], local: Tensors) -> tuple[AngleSource, ...]:
    """Return the angles of each local array; a single source where all can share it."""
    shared = len(call.angles) < len(arrays) and _share_angles(call, *arrays)
    return tuple(
        _slice_source(call.angles[min(i, len(call.angles) - 1)], x, local[i], call)
        for i, x in enumerate(arrays[:1] if shared else arrays)
    )


def local_lookup(lookup: TableLookup, whole: DTensor, placements: Placements) -> TableLookup:
    """Return a lookup of this process's shard of the positions."""
    if whole.device_mesh.get_coordinate() is None:
        # torch ignores the result in processes outside the mesh, but it must have the axes.
        zeros = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
        return replace(lookup, whole=zeros, part=None)
    parts = [_slice_leaf(leaf.array, whole, placements, placements) for leaf in leaves(lookup)]
    return with_leaves(lookup, parts)  # type: ignore[return-value]  # of a Lookup, a Lookup


def _share_angles(call: Call, q: Any, k: Any) -> bool:
    if angles_need_gradient(call):
        return bool(q.placements == k.placements)  # else it is a sum over other processes
    heads = call.spec.axes.heads
    q_dims, k_dims = (
        [p.dim if p.is_shard() and p.dim != heads else None for p in x.placements] for x in (q, k)
    )
    return q_dims == k_dims


def _slice_source(source: AngleSource, x: Any, local: torch.Tensor, call: Call) -> AngleSource:
    axes = call.spec.axes
    if isinstance(source, RelativeAngles):
        new, old = (_slice_source(lookup, x, local, call) for lookup in (source.new, source.old))
        return RelativeAngles(new, old)  # type: ignore[arg-type]  # of Lookups, Lookups
    if isinstance(source, TableLookup):
        if source.whole is None and any(p.is_shard(axes.tokens) for p in x.placements):
            whole = _PLAIN.arange(source.tokens, source.device)
            if source.components:
                whole = whole.expand(source.components, source.tokens)
            source = replace(source, whole=whole)
        if source.whole is None:
            return source
        source = replace(source, tokens=local.shape[axes.tokens])
    parts, order = [], (*axes.batch, axes.tokens)
    for array, lead, trail in leaves(source):
        placements = _place_angles(array.shape, x, order, lead, trail)
        parts.append(_slice_leaf(array, x, *placements))
    return with_leaves(source, parts)


def _place_angles(
    shape: torch.Size, x: Any, order: tuple[int, ...], lead: int, trail: int
) -> tuple[Placements, Placements]:
    """Return placements of angles (lead..., order..., trail...), and of their gradient."""
    first = len(shape) - trail - len(order)  # of the axis of angles for order[0]
    angles: list[Placement] = []
    gradient: list[Placement] = []
    for p in x.placements:
        axis = first + order.index(p.dim) if p.is_shard() and p.dim in order else -1
        if axis >= lead and shape[axis] == x.shape[p.dim]:
            angles.append(Shard(axis))
            gradient.append(Shard(axis))
        else:
            # Other processes use the same angles, so the gradient is the sum over all of them.
            angles.append(Replicate())
            gradient.append(Partial() if p.is_shard() else p)
    return tuple(angles), tuple(gradient)


def _slice_leaf(t: Any, like: Any, placements: Placements, gradient: Placements) -> Any:
    if not isinstance(t, DTensor):
        if not (t.requires_grad or any(p.is_shard() for p in placements)):
            return t
        t = DTensor.from_local(t, like.device_mesh, [Replicate()] * like.device_mesh.ndim)
    return t.redistribute(placements=placements).to_local(grad_placements=gradient)
