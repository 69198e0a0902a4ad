"""torch: eager, autograd, torch.func, torch.compile, torch.export, meta tensors."""

from __future__ import annotations

import dataclasses
import sys
from functools import lru_cache
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar

from rope_xp import _angles, _contract
from rope_xp._contract import Backend, Memory
from rope_xp.rope import RoPE

from . import _torch_paths
from ._torch_lasting import Tables, lasting

_NAMES = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}


class Torch(Backend):
    """The glue of torch."""

    def variant(self, x: torch.Tensor) -> Torch:
        """Tell apart distributed tensors, which exist only if their module is imported."""
        distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if distributed is None or not isinstance(x, distributed):
            return self
        from . import _dtensor

        return _dtensor.BACKEND

    def is_compiling(self) -> bool:
        """Return whether Dynamo or export traces the call."""
        return torch.compiler.is_compiling()

    def traced(self, host: object, device: torch.device) -> torch.Tensor:
        """Dynamo takes numpy arrays for tensors, whose dtype numpy code cannot read."""
        made = torch.as_tensor(host, device=device)
        if made.dtype.is_floating_point and isinstance(host, (int, float, list, tuple)):
            made = torch.as_tensor(host, dtype=torch.float64, device=device)
        return made

    def dtype_name(self, x: torch.Tensor) -> str:
        """Name the usual dtypes by a dict."""
        return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    def device(self, x: torch.Tensor) -> torch.device:
        """Return the attribute."""
        return x.device

    def asarray(self, host: np.ndarray, device: torch.device | None) -> torch.Tensor:
        """Copy: torch warns of read-only numpy memory, and cannot take negative strides."""
        if host.dtype.name == "bfloat16":
            host = host.astype(np.float32)
        return torch.tensor(np.ascontiguousarray(host), device=device)

    def arange(self, n: int, device: torch.device) -> torch.Tensor:
        """Take n as it is: torch.compile passes a symbol."""
        return torch.arange(n, dtype=torch.int32, device=device)

    def integers(self, positions: torch.Tensor) -> torch.Tensor:
        """Return int32 or int64. torch does not compare the unsigned dtypes."""
        if positions.dtype in (torch.int32, torch.int64):
            return positions
        if positions.dtype in (torch.uint32, torch.uint64):
            # uint64 beyond int64 wraps around to a negative number.
            signed = positions.to(torch.int64)
            return torch.where(signed < 0, _angles.LIMIT, signed)
        return positions.to(torch.int32)

    def rows(self, table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Select without a look at sizes, which a compiler may hold as symbols."""
        rows = table.index_select(0, indices.reshape(-1))
        return rows if indices.ndim == 1 else rows.reshape(*indices.shape, table.shape[1])

    def tables(self, rope: RoPE, head_dim: int, inverse: bool, wide: bool, like: Any) -> Tables:
        """Keep fake, functional and distributed tensors out of the cache."""
        if torch.compiler.is_compiling():
            return _tables_in_graph(rope, head_dim, inverse, wide, like.device)
        if type(like) not in _torch_paths.PLAIN:
            return _contract.put_tables(self, rope, head_dim, inverse, wide, like.device)
        return _cached_tables(rope, head_dim, inverse, wide, like.device)

    def memory(self, x: torch.Tensor) -> Memory | None:
        """Only plain tensors on a device have an address."""
        if (
            type(x) not in _torch_paths.PLAIN
            or torch.compiler.is_compiling()
            or x.device.type == "meta"
        ):
            return None
        strides = tuple(n * x.element_size() for n in x.stride())
        try:
            pointer = x.data_ptr()
        except RuntimeError:  # a wrapper of functorch, which looks plain
            return None
        return Memory(pointer, tuple(x.shape), strides, x.element_size(), True)

    def out_objection(self, out: torch.Tensor, x: torch.Tensor) -> str | None:
        """Refuse what autograd would refuse, before anything is written."""
        if torch.is_grad_enabled() and (out.requires_grad or x.requires_grad):
            return "autograd cannot follow out=; leave it away, or work under torch.no_grad()"
        if torch.compiler.is_compiling():
            return None
        if out.is_inference() and not torch.is_inference_mode_enabled():
            return "it was made under inference_mode and can be written only there"
        return None

    def write(self, out: torch.Tensor, result: torch.Tensor) -> None:
        """Copy result into out."""
        out.copy_(result)


@lru_cache(maxsize=64)
def _cached_tables(
    rope: RoPE, head_dim: int, inverse: bool, wide: bool, device: torch.device
) -> Tables:
    with lasting():
        return _contract.put_tables(BACKEND, rope, head_dim, inverse, wide, device)


def _tables_in_graph(
    rope: RoPE, head_dim: int, inverse: bool, wide: bool, device: torch.device
) -> Tables:
    # A rule that is no dataclass can only be handed over by itself, not within a tuple.
    rule = None if dataclasses.is_dataclass(rope.scaling) else rope.scaling
    fields = _flat(rope, rule)
    made = _constant_tables(fields, rule, guard_scalar(head_dim), inverse, wide, device)
    pairs = int(guard_scalar(head_dim if rope.rotary_dim is None else rope.rotary_dim)) // 2
    # Dynamo makes symbols of the sizes of constants too, given dynamic=True. These are known.
    sizes = _angles.table_sizes(pairs, wide)
    return tuple(
        tuple(t.as_strided(n, (*n[1:], 1)) for t, n in zip(tables, sizes, strict=True))
        for tables in made
    )


def _flat(value: Any, without: Any = None) -> Any:
    """Return a rope or rule as nested tuples of a class, names and plain values.

    In place of a dataclass instance that was made inside the graph, Dynamo (seen in torch 2.13)
    hands a constant function one with default fields, without a word.
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        values = [(name, getattr(value, name)) for name in names]
        kept = [(name, _flat(v)) for name, v in values if v is None or v is not without]
        return (type(value), *kept)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return guard_scalar(
            value
        )  # numbers of a second rope become symbols, which are no constants
    return value


def _built(flat: Any) -> Any:
    """Return what _flat was given."""
    if not (isinstance(flat, tuple) and flat and isinstance(flat[0], type)):
        return flat
    made: Any = object.__new__(flat[0])
    for name, value in flat[1:]:
        object.__setattr__(made, name, _built(value))
    return made


# Dynamo would trace through the cache and numpy, and compile the float64 builder in float32. A
# constant result is computed in plain Python and enters the graph finished.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no type for it
def _constant_tables(
    flat: Any, rule: Any, head_dim: int, inverse: bool, wide: bool, device: torch.device
) -> Tables:
    rope = _built(flat)
    if rule is not None:
        object.__setattr__(rope, "scaling", rule)
    return _contract.put_tables(BACKEND, rope, head_dim, inverse, wide, device)


BACKEND = Torch("torch", xp, (_torch_paths.Triton(), _torch_paths.Numba()))
