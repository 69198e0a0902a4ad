"""The angles of the tokens in one process's part of a DTensor.

torch cuts them out. What every process knows is a replicated DTensor, and to shard that along
tokens and batch, as the array to rotate is, takes a local slice: torch's own, so uneven and empty
parts and several mesh dimensions come out as they do for the array.
"""

from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import (
    AngleSource,
    Axes,
    Call,
    RelativeAngles,
    TableLookup,
    leaves,
    with_leaves,
)

from . import BACKEND as _PLAIN
from .paths import angles_need_gradient
from .signature import Tensors

Placements: TypeAlias = tuple[Placement, ...]


class _Placing(NamedTuple):
    """How angles are placed for the part of an array, and how their gradient comes from there."""

    angles: Placements
    gradient: Placements


def local_angles(call: Call, arrays: tuple[Any, ...], local: Tensors) -> tuple[AngleSource, ...]:
    """Return the angles of each part; a single source where all can share it."""
    shared = len(call.angles) < len(arrays) and _alike(call, *arrays)
    return tuple(
        _of_part(call.angles[min(i, len(call.angles) - 1)], x, local[i], call.spec.axes)
        for i, x in enumerate(arrays[:1] if shared else arrays)
    )


def local_lookup(lookup: TableLookup, whole: DTensor, placements: Placements) -> TableLookup:
    """Return a lookup of this process's part of the positions, placed like this."""
    if whole.device_mesh.get_coordinate() is None:
        # No part of it lies here, and torch ignores what is computed; but it is to have the axes.
        some = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
        return replace(lookup, whole=some, part=None)
    placing = _Placing(placements, placements)
    parts = [_part(leaf.array, whole, placing) for leaf in leaves(lookup)]
    return with_leaves(lookup, parts)  # type: ignore[return-value]  # of a Lookup, a Lookup


def _alike(call: Call, q: Any, k: Any) -> bool:
    """Return whether the parts of q and k have the same angles."""
    if angles_need_gradient(call):
        return bool(q.placements == k.placements)  # else it is a sum over other processes
    heads = call.spec.axes.heads
    cut = [
        [p.dim if p.is_shard() and p.dim != heads else None for p in x.placements] for x in (q, k)
    ]
    return cut[0] == cut[1]


def _of_part(source: AngleSource, x: Any, local: torch.Tensor, axes: Axes) -> AngleSource:
    """Return the angles of the tokens in this process's part of x."""
    if isinstance(source, RelativeAngles):
        new, old = (_of_part(lookup, x, local, axes) for lookup in (source.new, source.old))
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
    parts = [
        _part(leaf.array, x, _placing(leaf.array.shape, x, axes, leaf.lead, leaf.trail))
        for leaf in leaves(source)
    ]
    return with_leaves(source, parts)


def _placing(shape: torch.Size, x: Any, axes: Axes, lead: int, trail: int) -> _Placing:
    """Return the placing of angles (lead..., batch..., tokens, trail...) that follow x."""
    order = (*axes.batch, axes.tokens)
    first = len(shape) - trail - len(order)  # of the axis of angles for order[0]
    angles: list[Placement] = []
    gradient: list[Placement] = []
    for p in x.placements:
        at = first + order.index(p.dim) if p.is_shard() and p.dim in order else -1
        if at >= lead and shape[at] == x.shape[p.dim]:
            angles.append(Shard(at))
            gradient.append(Shard(at))
        else:
            # The same angles serve other parts of x elsewhere: each gives a part of the gradient.
            angles.append(Replicate())
            gradient.append(Partial() if p.is_shard() else p)
    return _Placing(tuple(angles), tuple(gradient))


def _part(t: Any, like: Any, placing: _Placing) -> Any:
    if not isinstance(t, DTensor):
        if not (t.requires_grad or any(p.is_shard() for p in placing.angles)):
            return t
        t = DTensor.from_local(t, like.device_mesh, [Replicate()] * like.device_mesh.ndim)
    return t.redistribute(placements=placing.angles).to_local(grad_placements=placing.gradient)
