"""The key of a call on plain tensors, which is past all that the dispatcher would have seen to."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from rope_xp._arguments.positions import read_if_known
from rope_xp._contract.call import LIMIT
from rope_xp._contract.memory import ACCESS
from rope_xp._dispatch.bound import Asked

from . import streams

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Kinds of tensors that are memory, and nothing else."""
_READ_AS_THEY_ARE = 4
"""Bytes of a float, from which on it has room for fractions."""


def asked(
    kind: Hashable,
    arrays: tuple[torch.Tensor, ...],
    positions: Any,
    out: Any,
    tables: tuple[torch.Tensor, torch.Tensor] | None,
) -> Asked | None:
    """Return the key of a call, its positions as kernels read them, and where it goes."""
    if torch.compiler.is_compiling() or _watched():
        return None
    ends, key = arrays, [kind, len(arrays)]
    if out is not None:
        if type(out) is not tuple or len(out) != len(arrays):
            return None
        ends += tuple([y for x, y in zip(arrays, out, strict=True) if x is not y])
        key += [x is y for x, y in zip(arrays, out, strict=True)]
    recorded, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    for x in ends:
        if not _plain(x):
            return None
        needs = recorded and x.requires_grad
        if out is not None and (needs or (x.is_inference() and not inference)):
            return None
        key += x.dtype, x.device, x.shape, x.stride(), needs
    compute = torch.float64 if arrays[0].dtype is torch.float64 else torch.float32
    device = arrays[0].device
    if tables is not None:
        rows = _tables(tables, compute, recorded)
    elif type(positions) is torch.Tensor:
        rows = _on_device(positions, device, compute, recorded)
    else:
        rows = _read(positions, compute)
    if rows is None:
        return None
    for row in rows:
        key += row.device, row.dtype, row.shape, row.stride()
    if device.type != "cpu":  # kernels for GPUs are compiled for how addresses are aligned
        key += [x.data_ptr() % ACCESS for x in (*ends, *rows)]
        key.append(streams.current(device))  # tables must know all streams that read them
    return Asked(tuple(key), arrays, rows, out)


def _plain(x: torch.Tensor) -> bool:
    """Return whether a tensor is what it has in memory."""
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and not x.is_neg()


def _tables(
    tables: tuple[torch.Tensor, ...], compute: torch.dtype, recorded: bool
) -> tuple[torch.Tensor, ...] | None:
    """Return cos and sin, None where they are to be cast, or where autograd follows them."""
    for row in tables:
        if not _plain(row) or row.dtype is not compute or (recorded and row.requires_grad):
            return None
    return tables


def _watched() -> bool:
    """Return whether anybody wants to see or to change what is done to tensors."""
    # torch has no public way to ask what it asks itself.
    return bool(
        torch._C._are_functorch_transforms_active()  # noqa: SLF001  # see above
        or forward_ad._current_level >= 0  # noqa: SLF001  # see above
        or torch._C._len_torch_dispatch_stack()  # noqa: SLF001  # see above
        or torch._C._len_torch_function_stack()  # noqa: SLF001  # see above
        or torch._C._get_tracing_state() is not None  # noqa: SLF001  # see above
        or torch._C._autograd._profiler_enabled()  # noqa: SLF001  # see above
    )


def _read(positions: Any, compute: torch.dtype) -> tuple[torch.Tensor, ...] | None:
    """Return positions and what they have after the point, None for what the long way refuses."""
    if positions is None:
        return ()
    read = read_if_known(positions, np.int64, compute is torch.float64)
    if read is None:
        return None
    whole, part, *_ = read
    rows = (whole,) if part is None else (whole, part)
    return tuple([torch.from_numpy(row.copy()) for row in rows])


def _on_device(
    positions: torch.Tensor, device: torch.device, compute: torch.dtype, recorded: bool
) -> tuple[torch.Tensor, ...] | None:
    """Return the same of a tensor, of which kernels find out themselves what is out of range."""
    if positions.device != device or not _plain(positions):
        return None
    if positions.dtype in (torch.int64, torch.int32):
        return (positions.to(torch.int64) if device.type == "cpu" else positions,)
    if not positions.is_floating_point() or (recorded and positions.requires_grad):
        return None
    return _parts(positions, compute)


def _parts(positions: torch.Tensor, compute: torch.dtype) -> tuple[torch.Tensor, ...]:
    """As Backend.parts."""
    if positions.itemsize < _READ_AS_THEY_ARE:
        positions = positions.to(torch.float32)
    whole = positions.floor()
    inside = positions.abs() < LIMIT
    part = torch.where(inside, positions - whole, 0.0).to(compute)
    return torch.where(inside, whole, -float(LIMIT)).to(torch.int64), part
