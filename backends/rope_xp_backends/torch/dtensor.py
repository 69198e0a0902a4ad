"""torch DTensor: a call on distributed tensors becomes a call on this process's shards.

A rotation mixes only the components of a head, so the paths of plain tensors rotate each shard by
the angles of its tokens (`dtensor_angles.py`). Autograd records ``to_local`` and ``from_local``.

Dynamo supports methods and ``==`` of placements, but no ``isinstance``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import Call, CosSin, TableLookup
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey

from . import BACKEND as _PLAIN
from . import dtensor_angles, private
from .library import Tensors, Torch

_LINEAR = (Partial("sum"), Partial("avg"))


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
        tables = _PLAIN.cos_sin(dtensor_angles.local_lookup(lookup, whole, tuple(placements)))
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
        angles = dtensor_angles.local_angles(call, arrays, local)
        weights = dtensor_angles.local_weights(call, arrays)
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
    strides = _nest_strides(like, shape)
    return DTensor.from_local(y, mesh, placements, shape=shape, stride=strides)


def _nest_strides(like: tuple[int, ...], shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a dense tensor of this shape whose axes nest as others do.

    Not as those of a shard, where an axis of length 1 has any place: all processes must agree.
    """
    # Where strides are equal an axis has length 1, and the order is that of a contiguous tensor.
    order: list[int] = []
    for axis in range(len(shape)):  # insertion sort, as a compiler sorts no symbols
        place = len(order)
        while place > 0 and like[order[place - 1]] < like[axis]:
            place -= 1
        order.insert(place, axis)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


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
    if linear and any(placement == p for p in _LINEAR):
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
