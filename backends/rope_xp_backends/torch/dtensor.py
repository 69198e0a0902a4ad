"""torch DTensor: a call on distributed tensors becomes a call on this process's shards.

A rotation mixes only the components of a head, so the paths of plain tensors rotate each shard by
the angles of its tokens. Plain positions become a replicated DTensor, sharded along tokens and
batch as the array is: a local slice by torch itself, so uneven and empty shards and several mesh
dimensions agree. Autograd records ``to_local`` and ``from_local``.

Dynamo supports methods and ``==`` of placements, but no ``isinstance``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import AngleSource, Call, CosSin, TableLookup, leaves, with_leaves
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey

from . import BACKEND as _PLAIN
from . import private
from .library import Tensors, Torch
from .paths import angles_need_gradient
from .results import empty_result

Placements: TypeAlias = tuple[Placement, ...]


class Distributed(Torch):
    """The glue of DTensor. Tables and host positions are plain tensors, on every process."""

    compatible_backend = _PLAIN

    def tables(self, table_key: TableKey, like: Any) -> DigitTables:
        return _PLAIN.tables(table_key, _detach_local(like))

    def memory(self, x: Any) -> Memory | None:
        return _PLAIN.memory(_detach_local(x))

    def unwritable_reason(self, out: torch.Tensor, x: torch.Tensor) -> str | None:
        """Reject out= under a compiler, which does not see that a shard belongs to a DTensor."""
        if self.is_compiling():
            return "a compiler cannot follow out= of DTensors"
        return super().unwritable_reason(out, x)

    def cos_sin(self, lookup: TableLookup) -> tuple[torch.Tensor, torch.Tensor]:
        """Look up the positions of this process. Results are sharded as positions are."""
        whole: Any = lookup.whole
        if not isinstance(whole, DTensor):
            return _PLAIN.cos_sin(lookup)
        places: Any = whole.placements
        lead = int(lookup.components > 0)
        placements: Any = [p if p.is_shard() and p.dim >= lead else Replicate() for p in places]
        tables = _PLAIN.cos_sin(_local_lookup(lookup, whole, tuple(placements)))
        placements = [Shard(p.dim - lead) if p.is_shard() else p for p in placements]
        shape = torch.Size((*whole.shape[lead:], tables[0].shape[-1]))
        cos, sin = (
            _from_local(t, t.stride(), whole.device_mesh, placements, shape) for t in tables
        )
        return cos, sin


class DTensorExecutor:
    """Runs a call by one on the shards of this process."""

    def local_call(self, call: Call) -> Call:
        _check_call(call)
        arrays = tuple(map(_detach_local, call.arrays))
        out = None if call.out is None else tuple(map(_detach_local, call.out))
        weights = tuple(map(_detach_local, call.weights))
        return Call(_PLAIN, arrays, call.angles, out, call.spec, weights)

    def run(self, call: Call, run: Callable[[Call], Tensors]) -> Tensors:
        _check_call(call)
        if call.arrays[0].device_mesh.get_coordinate() is None:  # this process is outside the mesh
            return call.out or tuple(x.clone() for x in call.arrays)
        arrays = tuple(map(_gather_heads, call.arrays))
        local = tuple(x.to_local() for x in arrays)
        angles = _local_angles(call, arrays, local)
        weights = _local_weights(call, arrays)
        if call.out is not None:
            out = tuple(map(_detach_local, call.out))
            run(Call(_PLAIN, local, angles, out, call.spec, weights))
            private.increment_versions(call.out)  # so far that of the shards alone
            return call.out
        results: Tensors = ()
        local_results = run(Call(_PLAIN, local, angles, None, call.spec, weights))
        for x, gathered, local_y in zip(call.arrays, arrays, local_results, strict=True):
            y = _from_local(local_y, x.stride(), x.device_mesh, gathered.placements, x.shape)
            results += (y.redistribute(placements=x.placements) if _has_split_heads(x) else y,)
        return results


def _detach_local(x: Any) -> Any:
    if not isinstance(x, DTensor):
        return x
    with torch.no_grad():
        return x.to_local()


def _gather_heads(x: Any) -> Any:
    """Return x with head_dim on every process, as pairs may be half a head apart."""
    if not _has_split_heads(x):
        return x
    last = x.ndim - 1
    return x.redistribute(placements=[Replicate() if p.is_shard(last) else p for p in x.placements])


def _has_split_heads(x: Any) -> bool:
    return any(p.is_shard(x.ndim - 1) for p in x.placements)


def _from_local(
    y: torch.Tensor, like: tuple[int, ...], mesh: Any, placements: Any, shape: torch.Size
) -> DTensor:
    # As of a result in one process. A shard's axis of length 1 has any place: all must agree.
    strides = empty_result(torch.empty_strided(shape, like, device="meta")).stride()
    return DTensor.from_local(y, mesh, placements, shape=shape, stride=strides)


# --- angles of the tokens in a shard, and weights of its heads -----------------------------------


def _local_angles(call: Call, arrays: tuple[Any, ...], local: Tensors) -> tuple[AngleSource, ...]:
    """Return the angles of each local array; a single source where all can share it."""
    shared = len(call.angles) < len(arrays) and _share_angles(call, *arrays)
    return tuple(
        _slice_source(call.angles[min(i, len(call.angles) - 1)], x, local[i], call)
        for i, x in enumerate(arrays[:1] if shared else arrays)
    )


def _local_weights(call: Call, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the weights of the heads in each local array, None where it has none."""

    def localize(x: Any, w: Any) -> Any:
        if w is None:
            return None
        # A weight with all axes stands beside angles of each head.
        axes = tuple(range(x.ndim - 1)) if w.ndim == x.ndim else (call.spec.axes.heads,)
        return _localize(w, x, *_place_like(w.shape, x, axes, 0, 1))

    return tuple(map(localize, arrays, call.weights))


def _local_lookup(lookup: TableLookup, whole: DTensor, placements: Placements) -> TableLookup:
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


# --- checks --------------------------------------------------------------------------------------


def _check_call(call: Call) -> None:
    names = ("q", "k") if len(call.arrays) == 2 else ("x",)
    angles: list[tuple[str, Any]] = []
    for source, name in zip(call.angles, ("positions", "k_positions"), strict=False):
        if isinstance(source, CosSin):
            angles += [("cos", source.cos), ("sin", source.sin)]
        else:
            angles.append((name, source.whole))
    operands = list(zip(names, call.arrays, strict=True))
    weights = zip(("norm.q_weight", "norm.k_weight"), call.weights, strict=False)
    for name, x in (*operands, *angles, *weights):
        _check_mesh(name, x, *operands[0])
    for name, x in operands:
        for placement in x.placements:
            _check_placement(name, placement, linear=call.spec.norm is None)
    for i, out in enumerate(call.out or ()):
        _check_out("out" if len(names) == 1 else f"out[{i}]", out, *operands[i])


def _check_mesh(name: str, x: Any, other_name: str, other: Any) -> None:
    if isinstance(x, DTensor) and x.device_mesh != other.device_mesh:
        raise RopeError(
            f"{name} lies on {x.device_mesh} and {other_name} on {other.device_mesh}; distribute "
            "them over one mesh. Positions, tables and weights may also be plain tensors, the same "
            "on every process"
        )


def _check_placement(name: str, placement: Placement, *, linear: bool) -> None:
    # A strided shard has other tokens than its dimension implies, and may become a Shard in torch.
    strided = hasattr(placement, "split_factor")
    if (placement.is_shard() and not strided) or placement.is_replicate():
        return
    if linear and any(placement == Partial(kind) for kind in ("sum", "avg")):
        return  # the rotation of a sum is the sum of rotations; a norm is not linear
    sums = ", Partial('sum'), Partial('avg')" if linear else " alone, as norms are not linear"
    raise RopeError(
        f"{name} has the placement {placement}, and may have Shard, Replicate{sums}; bring it to "
        f"one of these by {name}.redistribute"
    )


def _check_out(label: str, out: Any, name: str, x: Any) -> None:
    _check_mesh(label, out, name, x)
    if out.placements != x.placements:
        placements = f"{out.placements} and {name} {x.placements}"
        raise RopeError(f"{label} has the placements {placements}; they must be equal")
    if _has_split_heads(x):
        raise RopeError(f"{label}: {name} is sharded over head_dim and gathered first; omit out=")


BACKEND = Distributed("torch DTensor", _PLAIN.xp, _PLAIN.paths)
BACKEND.sharded_executor = DTensorExecutor()
