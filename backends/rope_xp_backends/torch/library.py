"""The glue of torch: tensors, their memory, in-place writes."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from rope_xp._core.call import LIMIT
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend, put_tables

from . import private, tables

NAMES = {getattr(torch, name): name for name in (*FLOATS, *INTEGERS)}
Tensors: TypeAlias = tuple[torch.Tensor, ...]
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensor classes without behaviour of their own."""
DEVICES = {"cuda"}
"""Device types with a kernel for GPUs. ROCm's is called cuda too."""


def is_plain(x: torch.Tensor) -> bool:
    """Return whether the elements of a tensor are those in its memory."""
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and not x.is_neg()


def _is_followed(x: torch.Tensor) -> bool:
    """Return whether derivatives follow operations on a tensor."""
    if private.are_transforms_active() or private.is_forward_mode():
        return True
    return x.requires_grad and torch.is_grad_enabled()


def _read_host(positions: torch.Tensor) -> np.ndarray | None:
    """Return a plain tensor on a CPU as a numpy array.

    None where autograd records it, and of a functional tensor, which looks plain and has no memory.
    """
    if positions.requires_grad and torch.is_grad_enabled():
        return None
    if positions.numel() and not positions.data_ptr():
        return None
    if positions.dtype is torch.bfloat16:
        positions = positions.float()
    return positions.detach().numpy() if positions.requires_grad else positions.numpy()


class Torch(Backend):
    """The glue of torch."""

    assigns_by_index = True

    is_compiling = staticmethod(torch.compiler.is_compiling)

    def asarray_in_trace(self, host: object, device: torch.device) -> torch.Tensor:
        """Dynamo takes numpy arrays for tensors, whose dtype numpy code cannot read."""
        x = torch.as_tensor(host, device=device)
        if x.dtype.is_floating_point and isinstance(host, (int, float, list, tuple)):
            x = torch.as_tensor(host, dtype=torch.float64, device=device)
        return x

    def dtype_name(self, x: torch.Tensor) -> str:
        if x.is_nested or x.layout is not torch.strided:
            return f"{x.dtype}, but not strided"
        return NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    def unreadable_reason(self, x: torch.Tensor) -> str | None:
        if x.is_nested and x.layout is torch.jagged:
            packed = "its values(), at positions.packed of its offsets()"
            return f"a nested tensor, and dense ones are taken; rotate {packed}"
        if x.is_nested:
            return "a nested tensor, and dense ones are taken; rotate those in it, or padded ones"
        if x.layout is not torch.strided:
            return f"a tensor of layout {x.layout}, and dense ones are taken; pass x.to_dense()"
        return None

    def device(self, x: torch.Tensor) -> torch.device:
        return x.device

    def asarray(self, host: np.ndarray, device: torch.device | None) -> torch.Tensor:
        """Copy: torch warns of read-only memory, and takes no negative strides.

        Not even those of an axis of length 1, which numpy calls contiguous.
        """
        is_plain = host.flags.writeable and host.flags.c_contiguous and 1 not in host.shape
        return torch.tensor(host if is_plain else host.copy(), device=device)

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
            return torch.where(signed < 0, LIMIT, signed)
        return positions.to(torch.int32)

    def host_view(self, positions: torch.Tensor) -> np.ndarray | None:
        if torch.compiler.is_compiling() or private.are_transforms_active():
            return None
        on_host = is_plain(positions) and positions.device.type == "cpu"
        return _read_host(positions) if on_host else None

    def stop_gradient(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach() if _is_followed(x) else x

    def add_derivative(
        self,
        value: torch.Tensor,
        function: Callable[[torch.Tensor], torch.Tensor],
        x: torch.Tensor,
    ) -> torch.Tensor:
        """Skip the function where nothing follows it."""
        return super().add_derivative(value, function, x) if _is_followed(x) else value

    def take_rows(self, table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Select without branching on sizes, which may be a compiler's symbols."""
        rows = table.index_select(0, indices.reshape(-1))
        return rows if indices.ndim == 1 else rows.reshape(*indices.shape, table.shape[1])

    def cumulative_sum(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Leave out array_api_compat, whose cache torch.compile warns of."""
        return torch.cumsum(x, axis, dtype=x.dtype)

    def has_float64(self, x: torch.Tensor) -> bool:
        return x.device.type != "mps"

    def replace_slots(
        self, x: torch.Tensor, axis: int, rows: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        return x.index_copy(axis, rows.long(), values)

    def tables(self, table_key: TableKey, like: torch.Tensor) -> DigitTables:
        """Keep fake and functional tensors out of the cache."""
        if torch.compiler.is_compiling():
            return tables.tables_in_graph(table_key, like.device)
        is_traced = private.count_dispatch_modes() or isinstance(like, private.FakeTensor)
        if (type(like) not in PLAIN and is_traced) or not private.can_make_plain_tensors():
            return put_tables(self, table_key, like.device)
        cached = tables.tables_on_device((table_key, like.device))
        if like.device.type == "cuda":
            tables.extend_lifetime(cached)
        return cached

    def memory(self, x: torch.Tensor) -> Memory | None:
        """Only plain tensors on a device have an address."""
        if type(x) not in PLAIN or torch.compiler.is_compiling() or x.device.type == "meta":
            return None
        strides = tuple(n * x.element_size() for n in x.stride())
        try:
            pointer = x.data_ptr()
        except RuntimeError:  # a wrapper of functorch, which looks plain
            return None
        return Memory(pointer, tuple(x.shape), strides, x.element_size(), True)

    def unwritable_reason(self, out: torch.Tensor, x: torch.Tensor) -> str | None:
        """Reject what autograd would reject, before anything is written."""
        if torch.is_grad_enabled() and (out.requires_grad or x.requires_grad):
            return "autograd cannot follow out=; omit it, or work under torch.no_grad()"
        unreadable = self.unreadable_reason(out)
        if unreadable is not None or torch.compiler.is_compiling():
            return unreadable
        if out.is_inference() and not torch.is_inference_mode_enabled():
            return "it was made under inference_mode and can be written only there"
        return None

    def write(self, out: torch.Tensor, result: torch.Tensor) -> None:
        out.copy_(result)
