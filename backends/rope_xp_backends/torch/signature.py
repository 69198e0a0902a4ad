"""Signatures of eager calls on plain tensors, which no transform or mode follows."""

from collections.abc import Hashable
from typing import Any, TypeAlias

import numpy as np
import torch

from rope_xp._arguments.positions import read_rows
from rope_xp._core.call import UNKNOWN, PositionRange
from rope_xp._core.memory import ACCESS
from rope_xp._dispatch.call_cache import CallSignature, collect_operands

from . import private, streams

Tensors: TypeAlias = tuple[torch.Tensor, ...]
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that are memory, and nothing else."""
_INTEGERS = (torch.int64, torch.int32)


def is_plain(x: torch.Tensor) -> bool:
    """Return whether a tensor is what it has in memory."""
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and not x.is_neg()


def host_view(positions: torch.Tensor) -> np.ndarray | None:
    """Return a plain tensor in CPU memory as a numpy array, None where autograd follows it."""
    if positions.requires_grad and torch.is_grad_enabled():
        return None
    if positions.dtype is torch.bfloat16:
        positions = positions.float()
    return positions.detach().numpy() if positions.requires_grad else positions.numpy()


def signature(
    context: Hashable,
    arrays: Tensors,
    positions: Any,
    out: Any,
    tables: Tensors | None,
) -> CallSignature | None:
    """Return the signature of a call, None if it cannot be cached."""
    if torch.compiler.is_compiling() or private.is_observed():
        return None
    found = collect_operands(arrays, out)
    operands = None if found is None else _described(found[0], out is not None)
    read = _read(positions, arrays[0]) if tables is None else _given(tables, arrays[0])
    if operands is None or read is None:
        return None
    angle_inputs, position_range = read
    key: list[Hashable] = [context, found[1], position_range, *operands]  # type: ignore[index]  # it was found
    for row in angle_inputs:
        key += row.dtype, row.shape, row.stride()
    device = arrays[0].device
    if device.type != "cpu":
        if streams.is_capturing(device):
            return None  # the slow path pins what a graph will read
        # Kernels for GPUs are compiled for the alignment of addresses.
        key += [x.data_ptr() % ACCESS for x in (*found[0], *angle_inputs)]  # type: ignore[index]  # likewise
        key.append(streams.current(device))  # tables must know all streams that read them
    return CallSignature(tuple(key), arrays, angle_inputs, position_range, out)


def _described(operands: Tensors, written: bool) -> list[Hashable] | None:
    """Return what a key has of operands, None where some must not be read or written so."""
    recorded, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    key: list[Hashable] = []
    for x in operands:
        if not is_plain(x):
            return None
        needs_grad = recorded and x.requires_grad
        if written and (needs_grad or (x.is_inference() and not inference)):
            return None
        key += x.dtype, x.device, x.shape, x.stride(), needs_grad
    return key


def _given(tables: Tensors, x: torch.Tensor) -> tuple[Tensors, None] | None:
    """Return cos and sin, None where they are to be cast, or where autograd follows them."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    recorded = torch.is_grad_enabled()
    for row in tables:
        if not is_plain(row) or row.dtype is not dtype or row.device != x.device:
            return None
        if recorded and row.requires_grad:
            return None
    return tables, None


def _read(positions: Any, x: torch.Tensor) -> tuple[Tensors, PositionRange | None] | None:
    """Return positions and their fractions as kernels read them, and their range.

    Where autograd records, those on a CPU are tensors of our own, which it may save.
    """
    if positions is None:
        return (), None
    on_cpu, host = x.device.type == "cpu", positions
    if type(positions) is torch.Tensor:
        if positions.device != x.device or not is_plain(positions):
            return None
        if not on_cpu:
            return ((positions,), UNKNOWN) if positions.dtype in _INTEGERS else None
        host = host_view(positions)
    # They are copied to other devices in each call.
    read = read_rows(host, np.int64, x.dtype is torch.float64) if on_cpu else None
    if read is None:
        return None
    angle_inputs, position_range = read
    if angle_inputs[0] is host and host is not positions and not torch.is_grad_enabled():
        return (positions,), position_range
    return tuple([torch.from_numpy(row.copy()) for row in angle_inputs]), position_range
