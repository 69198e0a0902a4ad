"""The angles of the tokens in one process's part of a DTensor.

torch cuts them out. What every process knows is a replicated DTensor, and to shard that along
tokens and batch, as the array to rotate is, takes a local slice: torch's own, so uneven and empty
parts and several mesh dimensions come out as they do for the array.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._axes import Axes
from rope_xp._contract import Angles, Call, Difference, Given, Lookup

from . import _torch_paths
from . import torch as _glue

Placements: TypeAlias = tuple[Placement, ...]
Tensors: TypeAlias = tuple[torch.Tensor, ...]


class _Placing(NamedTuple):
    """How angles are placed for the part of an array, and how their gradient comes from there."""

    angles: Placements
    gradient: Placements


def here(call: Call, arrays: tuple[Any, ...], local: Tensors) -> tuple[Angles, ...]:
    """Return the angles of each part; a single source where all can share it."""
    shared = len(call.angles) < len(arrays) and _alike(call, *arrays)
    return tuple(
        _angles(call.angles[min(i, len(call.angles) - 1)], x, local[i], call.axes)
        for i, x in enumerate(arrays[:1] if shared else arrays)
    )


def of_positions(lookup: Lookup, whole: DTensor, placements: Placements) -> Lookup:
    """Return a lookup of this process's part of the positions, placed like this."""
    if whole.device_mesh.get_coordinate() is None:
        # No part of it lies here, and torch ignores what is computed; but it is to have the axes.
        some = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
        return _like(lookup, some, None, lookup.tokens)
    placing = _Placing(placements, placements)
    return _parts(lookup, whole, whole, placing, lookup.tokens)


def _alike(call: Call, q: Any, k: Any) -> bool:
    """Return whether the parts of q and k have the same angles."""
    if _torch_paths.angles_need_gradient(call):
        return bool(q.placements == k.placements)  # else it is a sum over other processes
    cut = [
        [p.dim if p.is_shard() and p.dim != call.axes.heads else None for p in x.placements]
        for x in (q, k)
    ]
    return cut[0] == cut[1]


def _angles(angles: Angles, x: Any, local: torch.Tensor, axes: Axes) -> Angles:
    if isinstance(angles, Given):
        placing = _placing(angles.cos.shape, x, axes, lead=0, trail=1)
        return Given(_part(angles.cos, x, placing), _part(angles.sin, x, placing))
    if isinstance(angles, Difference):
        new, old = (_lookup(a, x, local, axes) for a in (angles.new, angles.old))
        return Difference(new, old)
    return _lookup(angles, x, local, axes)


def _lookup(lookup: Lookup, x: Any, local: torch.Tensor, axes: Axes) -> Lookup:
    whole, tokens = lookup.whole, local.shape[axes.tokens]
    if whole is None:
        if not any(p.is_shard(axes.tokens) for p in x.placements):
            return lookup
        whole = _glue.BACKEND.arange(lookup.tokens, lookup.device)
        if lookup.components:
            whole = whole.expand(lookup.components, lookup.tokens)
    placing = _placing(whole.shape, x, axes, lead=int(lookup.components > 0), trail=0)
    return _parts(lookup, whole, x, placing, tokens)


def _parts(lookup: Lookup, whole: Any, like: Any, placing: _Placing, tokens: int) -> Lookup:
    part = None if lookup.part is None else _part(lookup.part, like, placing)
    return _like(lookup, _part(whole, like, placing), part, tokens)


def _like(lookup: Lookup, whole: Any, part: Any, tokens: int) -> Lookup:
    return Lookup(
        lookup.tables,
        whole,
        part,
        lookup.device,
        tokens,
        lookup.reach,
        lookup.wide,
        lookup.scale,
        lookup.components,
    )


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
