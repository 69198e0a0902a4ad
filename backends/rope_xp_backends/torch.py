"""torch: eager, autograd, torch.func, torch.compile, torch.export, meta tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from rope_xp import _angles, _contract
from rope_xp._contract import Backend, Memory
from rope_xp.rope import RoPE

_NAMES = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)

Tables = tuple[tuple[torch.Tensor, ...], ...]


class Torch(Backend):
    """The glue of torch."""

    def is_compiling(self) -> bool:
        """Return whether Dynamo or export traces the call."""
        return torch.compiler.is_compiling()

    def traced(self, host: object, device: torch.device) -> torch.Tensor:
        """Dynamo takes numpy arrays for tensors, whose dtype numpy code cannot read."""
        return torch.as_tensor(host, device=device)

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

    def tables(self, rope: RoPE, head_dim: int, inverse: bool, wide: bool, like: Any) -> Tables:
        """Keep fake, functional and distributed tensors out of the cache."""
        if torch.compiler.is_compiling():
            return _constant_tables(  # type: ignore[no-any-return]  # as untyped as its decorator
                rope.base,
                rope.rotary_dim,
                rope.rotary_offset,
                _fields(rope.scaling),
                rope.position_axes,
                head_dim,
                inverse,
                wide,
                like.device,
            )
        if type(like) not in _PLAIN:
            return _contract.put_tables(self, rope, head_dim, inverse, wide, like.device)
        # Made under inference_mode they could not be saved for a backward pass later.
        with torch.inference_mode(False):
            return super().tables(rope, head_dim, inverse, wide, like)

    def memory(self, x: torch.Tensor) -> Memory | None:
        """Only plain tensors on a device have an address."""
        if type(x) not in _PLAIN or torch.compiler.is_compiling() or x.device.type == "meta":
            return None
        strides = tuple(n * x.element_size() for n in x.stride())
        return Memory(x.data_ptr(), tuple(x.shape), strides, x.element_size(), True)

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


def _fields(scaling: Any) -> Any:
    if scaling is None or not dataclasses.is_dataclass(scaling):
        return scaling
    values = tuple(getattr(scaling, field.name) for field in dataclasses.fields(scaling))
    return (type(scaling), values)


# Dynamo would trace through the cache and numpy, and compile the float64 builder in float32. A
# constant result is computed in plain Python and enters the graph finished. Its arguments are
# plain values on purpose: in place of a dataclass instance that was made inside the graph, Dynamo
# (seen in torch 2.13) hands over one with default fields, without a word.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no type for it
def _constant_tables(
    base: float,
    rotary_dim: int | None,
    rotary_offset: int,
    scaling: Any,
    position_axes: tuple[int, ...] | None,
    head_dim: int,
    inverse: bool,
    wide: bool,
    device: torch.device,
) -> Tables:
    if isinstance(scaling, tuple):
        rule, values = scaling
        scaling = rule(*values)
    rope = RoPE(base, "half", rotary_dim, rotary_offset, scaling, position_axes)
    return _contract.put_tables(BACKEND, rope, head_dim, inverse, wide, device)


BACKEND = Torch("torch", xp)
