"""The angles of the tokens in one process's shard of a DTensor, and the weights of its heads.

Plain positions become a replicated DTensor, sharded along tokens and batch as the array is. That
is a local slice by torch itself, so uneven and empty shards and several mesh dimensions agree.
"""

from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import AngleSource, Call, TableLookup, leaves, with_leaves

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


def local_weights(call: Call, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the weights of the heads in each local array, None where it has none."""
    weights: list[Any] = []
    for x, w in zip(arrays, call.weights, strict=False):
        # A weight with all axes stands beside angles of each head.
        axes = range(x.ndim - 1) if w is not None and w.ndim == x.ndim else (call.spec.axes.heads,)
        placed = None if w is None else _place_like(w.shape, x, tuple(axes), 0, 1)
        weights.append(None if placed is None else _localize(w, x, *placed))
    return tuple(weights)


def local_lookup(lookup: TableLookup, whole: DTensor, placements: Placements) -> TableLookup:
    """Return a lookup of this process's shard of the positions."""
    if whole.device_mesh.get_coordinate() is None:
        # torch ignores the result in processes outside the mesh, but it must have the axes.
        zeros = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
        return replace(lookup, whole=zeros, part=None)
    parts = [_localize(leaf.array, whole, placements, placements) for leaf in leaves(lookup)]
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
        placements = _place_like(array.shape, x, order, lead, trail)
        parts.append(_localize(array, x, *placements))
    return with_leaves(source, parts)


def _place_like(
    shape: torch.Size, x: Any, order: tuple[int | None, ...], lead: int, trail: int
) -> tuple[Placements, Placements]:
    """Return placements like those of x for (lead..., order..., trail...), and of its gradient."""
    first = len(shape) - trail - len(order)  # of the axis for order[0]
    placements: list[Placement] = []
    gradient: list[Placement] = []
    for p in x.placements:
        axis = first + order.index(p.dim) if p.is_shard() and p.dim in order else -1
        if axis >= lead and shape[axis] == x.shape[p.dim]:
            placements.append(Shard(axis))
            gradient.append(Shard(axis))
        else:
            # Other processes use the same values, so the gradient is the sum over all of them.
            placements.append(Replicate())
            gradient.append(Partial() if p.is_shard() else p)
    return tuple(placements), tuple(gradient)


def _localize(t: Any, like: Any, placements: Placements, gradient: Placements) -> Any:
    """Return what this process has of a tensor; the same one on every process if it is plain."""
    if not isinstance(t, DTensor):
        if not (t.requires_grad or any(p.is_shard() for p in placements)):
            return t
        t = DTensor.from_local(t, like.device_mesh, [Replicate()] * like.device_mesh.ndim)
    return t.redistribute(placements=placements).to_local(grad_placements=gradient)
