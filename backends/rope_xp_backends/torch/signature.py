"""Signatures of eager calls on plain tensors, outside transforms and modes."""

from collections.abc import Hashable
from typing import Any, TypeAlias

import numpy as np
import torch

from rope_xp._arguments.positions import read_rows
from rope_xp._core.call import UNKNOWN, PositionRange
from rope_xp._core.memory import ACCESS
from rope_xp._dispatch.call_cache import CallSignature, collect_operands

from . import private

Tensors: TypeAlias = tuple[torch.Tensor, ...]
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensor classes without behaviour of their own."""
_INTEGERS = (torch.int64, torch.int32)


def is_plain(x: torch.Tensor) -> bool:
    """Return whether the elements of a tensor are those in its memory."""
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and not x.is_neg()


def host_view(positions: torch.Tensor) -> np.ndarray | None:
    """Return a plain tensor in CPU memory as a numpy array, None where autograd records it."""
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
    checked = collect_operands(arrays, out)
    if checked is None:
        return None
    operands, in_place = checked
    operand_key = _describe_operands(operands, out is not None)
    if tables is None:
        angles = _read_positions(positions, arrays[0])
    else:
        angles = (tables, None) if _can_read_tables(tables, arrays[0]) else None
    if operand_key is None or angles is None:
        return None
    angle_inputs, position_range = angles
    key: list[Hashable] = [context, in_place, position_range, *operand_key]
    for row in angle_inputs:
        key += row.dtype, row.shape, row.stride()
    device = arrays[0].device
    if device.type != "cpu":
        if private.is_capturing(device):
            return None  # the slow path pins what a graph will read
        # Kernels for GPUs are compiled for the alignment of addresses.
        key += [x.data_ptr() % ACCESS for x in (*operands, *angle_inputs)]
        key.append(private.current_stream(device))  # tables must know all streams that read them
    return CallSignature(tuple(key), arrays, angle_inputs, position_range, out)


def _describe_operands(operands: Tensors, written: bool) -> list[Hashable] | None:
    """Return the key of operands, None where the slow path must check them."""
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


def _can_read_tables(tables: Tensors, x: torch.Tensor) -> bool:
    """Return whether a kernel reads cos and sin as they are, and autograd records neither."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    recorded = torch.is_grad_enabled()
    for row in tables:
        if not is_plain(row) or row.dtype is not dtype or row.device != x.device:
            return False
        if recorded and row.requires_grad:
            return False
    return True


def _read_positions(positions: Any, x: torch.Tensor) -> tuple[Tensors, PositionRange | None] | None:
    """Return positions and their fractions as kernels read them, and their range.

    Where autograd records, positions on a CPU are copied, so that it may save them.
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
    # Host positions of a call on another device are copied there by the slow path.
    rows = read_rows(host, np.int64, x.dtype is torch.float64) if on_cpu else None
    if rows is None:
        return None
    angle_inputs, position_range = rows
    if angle_inputs[0] is host and host is not positions and not torch.is_grad_enabled():
        return (positions,), position_range
    return tuple([torch.from_numpy(row.copy()) for row in angle_inputs]), position_range
