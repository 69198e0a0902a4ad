"""torch DTensor: a call on distributed tensors becomes one on the parts that this process holds.

A rotation mixes nothing but the components of a head, so each part is rotated by itself, by the
paths of plain tensors, given the angles of its own tokens (`dtensor_angles.py`). Autograd follows
through ``to_local`` and ``from_local``.

Dynamo knows placements by their methods and ``==`` alone, so there is no ``isinstance`` of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from rope_xp._core.call import Call, CosSin, RelativeAngles, TableLookup
from rope_xp._core.errors import RopeError
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.memory import Memory

from . import BACKEND as _PLAIN
from . import dtensor_angles
from .library import Torch
from .signature import Tensors

_LINEAR = (Partial("sum"), Partial("avg"))


class Distributed(Torch):
    """The glue of DTensor. Tables and positions of the host are plain tensors, on every process."""

    compatible_backend = _PLAIN

    def tables(self, table_key: TableKey, like: Any) -> DigitTables:
        """Return those of plain tensors, from their cache."""
        return _PLAIN.tables(table_key, _held(like))

    def memory(self, x: Any) -> Memory | None:
        """Return where the part of this process lies."""
        return _PLAIN.memory(_held(x))

    def unwritable_reason(self, out: torch.Tensor, x: torch.Tensor) -> str | None:
        """Refuse what a compiler would lose: it does not see that a part belongs to a tensor."""
        if self.is_compiling():
            return "a compiler cannot follow out= of DTensors; leave it away"
        return super().unwritable_reason(out, x)

    def cos_sin(self, lookup: TableLookup) -> tuple[torch.Tensor, torch.Tensor]:
        """Look up where the positions lie. Results are sharded as they are."""
        whole: Any = lookup.whole
        lead = int(lookup.components > 0)
        if not isinstance(whole, DTensor):
            return _PLAIN.cos_sin(lookup)
        local_call: Any = whole.placements
        kept: list[Any] = [p if p.is_shard() and p.dim >= lead else Replicate() for p in local_call]
        tables = _PLAIN.cos_sin(dtensor_angles.local_lookup(lookup, whole, tuple(kept)))
        placed = [Shard(p.dim - lead) if p.is_shard() else p for p in kept]
        shape = torch.Size((*whole.shape[lead:], tables[0].shape[-1]))
        cos, sin = (_from_local(t, whole.device_mesh, placed, shape) for t in tables)
        return cos, sin


class OfParts:
    """Runs a call by one on the parts that this process holds."""

    def local_call(self, call: Call) -> Call:
        """Return a call on the parts of this process as they lie, which no process waits for."""
        _check(call)
        arrays = tuple(map(_held, call.arrays))
        out = None if call.out is None else tuple(map(_held, call.out))
        return Call(_PLAIN, arrays, call.angles, out, call.spec)

    def run(self, call: Call, run: Callable[[Call], Tensors]) -> Tensors:
        """Rotate the part of this process."""
        _check(call)
        if _outside(call.arrays[0]):
            return call.out or tuple(x.clone() for x in call.arrays)
        arrays = tuple(map(_with_whole_heads, call.arrays))
        local = tuple(x.to_local() for x in arrays)
        angles = dtensor_angles.local_angles(call, arrays, local)
        if call.out is not None:
            run(Call(_PLAIN, local, angles, tuple(map(_held, call.out)), call.spec))
            torch.autograd.graph.increment_version(call.out)  # so far only their parts know
            return call.out
        results = run(Call(_PLAIN, local, angles, None, call.spec))
        whole = (
            _from_local(y, x.device_mesh, x.placements, x.shape)
            for x, y in zip(arrays, results, strict=True)
        )
        return tuple(
            y.redistribute(placements=x.placements) if _heads_are_cut(x) else y
            for x, y in zip(call.arrays, whole, strict=True)
        )


def _held(x: Any) -> Any:
    """Return the part of this process, detached."""
    if not isinstance(x, DTensor):
        return x
    with torch.no_grad():
        return x.to_local()


def _outside(x: Any) -> bool:
    """Return whether this process has no part of x, for it is not in the mesh."""
    return x.device_mesh.get_coordinate() is None


def _with_whole_heads(x: Any) -> Any:
    """Return x with head_dim on every process, as pairs may be half a head apart."""
    if not _heads_are_cut(x):
        return x
    last = x.ndim - 1
    return x.redistribute(placements=[Replicate() if p.is_shard(last) else p for p in x.placements])


def _heads_are_cut(x: Any) -> bool:
    return any(p.is_shard(x.ndim - 1) for p in x.placements)


def _from_local(y: torch.Tensor, mesh: Any, placements: Any, shape: torch.Size) -> DTensor:
    return DTensor.from_local(y, mesh, placements, shape=shape, stride=_strides(y, shape))


def _strides(part: torch.Tensor, shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a dense tensor of this shape whose axes nest as those of its part."""
    # Where strides are equal an axis has length 1, and the order is that of a contiguous tensor.
    order: list[int] = []
    for axis in range(len(shape)):  # to sort, spelled so that a compiler takes it with symbols
        at = len(order)
        while at > 0 and part.stride(order[at - 1]) < part.stride(axis):
            at -= 1
        order.insert(at, axis)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


# --- what cannot be taken ------------------------------------------------------------------------


def _check(call: Call) -> None:
    names = ("q", "k") if len(call.arrays) == 2 else ("x",)
    mesh = call.arrays[0].device_mesh
    for name, x in zip(names, call.arrays, strict=True):
        _check_mesh(name, x, names[0], mesh)
        for p in x.placements:
            _check_placement(name, p)
    for name, angle in _named_angles(call):
        _check_mesh(name, angle, names[0], mesh)
    for i, out in enumerate(call.out or ()):
        _check_out("out" if len(names) == 1 else f"out[{i}]", out, names[i], call.arrays[i])


def _check_mesh(name: str, x: Any, first: str, mesh: Any) -> None:
    if isinstance(x, DTensor) and x.device_mesh != mesh:
        msg = (
            f"{name} lies on {x.device_mesh} and {first} on {mesh}; distribute them over one mesh. "
            "Positions and tables may also be plain tensors, the same on every process"
        )
        raise RopeError(msg)


def _check_placement(name: str, placement: Placement) -> None:
    # A strided shard holds other tokens than its dimension says; torch may come to call it a Shard.
    strided = hasattr(placement, "split_factor")
    if (placement.is_shard() and not strided) or placement.is_replicate():
        return
    if any(placement == p for p in _LINEAR):
        return  # the rotation of a sum is the sum of rotations
    msg = (
        f"{name} has the placement {placement}; a rotation takes Shard, Replicate, Partial('sum') "
        f"and Partial('avg'). Bring it to one of these by {name}.redistribute"
    )
    raise RopeError(msg)


def _check_out(label: str, out: Any, name: str, x: Any) -> None:
    _check_mesh(label, out, name, x.device_mesh)
    if out.placements != x.placements:
        msg = (
            f"{label} has the placements {out.placements} and {name} {x.placements}; "
            "they must be equal"
        )
        raise RopeError(msg)
    if _heads_are_cut(x):
        msg = f"{label}: {name} is sharded over head_dim and gathered first; leave out= away"
        raise RopeError(msg)


def _named_angles(call: Call) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for angles, name in zip(call.angles, ("positions", "k_positions"), strict=False):
        if isinstance(angles, CosSin):
            found += [("cos", angles.cos), ("sin", angles.sin)]
        elif isinstance(angles, RelativeAngles):
            found += [("old_positions", angles.old.whole), ("new_positions", angles.new.whole)]
        else:
            found.append((name, angles.whole))
    return found


BACKEND = Distributed("torch DTensor", _PLAIN.xp, _PLAIN.paths)
BACKEND.sharded_executor = OfParts()
