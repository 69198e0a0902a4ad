"""torch's operator on GPUs: from tensors to launches of Triton's kernel.

Nothing is read from the device and nothing is waited for, so a CUDA graph can record it all.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from rope_xp import _axes
from rope_xp._contract import Unavailable
from rope_xp._dispatch import BROKEN

from . import _triton_plan
from ._triton_plan import ACCESS, LARGEST_ROW, Angles, Operand, Plan

if TYPE_CHECKING:
    from ._torch_op import How, Tensors

DEVICES = {"cuda"}
"""Kinds of devices whose tensors are taken. ROCm's are called cuda too."""

_NAMES = {getattr(torch, name): name for name in (*_triton_plan.SIZES, "int32", "int64")}
_kernels: Any = None  # an import statement in a function takes a microsecond each time
_objection: str | None = None
if importlib.util.find_spec("triton") is None:
    _objection = "triton is not installed (pip install 'rope-xp[triton]')"


def objection() -> str | None:
    """Return why this process has no kernels, None if it can have them."""
    return _objection


def too_large(x: torch.Tensor) -> str | None:
    """Return why the rows of a tensor do not fit a kernel, or None."""
    if x.shape[-1] * x.itemsize <= LARGEST_ROW:
        return None
    return (
        f"a head of {x.shape[-1]} components is {x.shape[-1] * x.itemsize} bytes long, and its "
        f"kernel holds {LARGEST_ROW} in registers"
    )


def too_old(x: torch.Tensor) -> str | None:
    """Return why Triton does not know a tensor's device, or None."""
    if torch.compiler.is_compiling():  # which cannot look at devices; the operator will find out
        return None
    capability = _capability(x.device)
    if capability >= (8, 0):
        return None
    found = ".".join(map(str, capability))
    return f"its kernels need compute capability 8.0, and {x.device} has {found}"


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda" or torch.version.hip:
        return (8, 0)
    return torch.cuda.get_device_capability(device)


def load() -> Any:
    """Return the module of kernels, or raise Unavailable."""
    global _kernels
    if _objection is not None:
        raise Unavailable(_objection)
    if _kernels is None:
        try:
            from .kernels import triton as _kernels
        except BROKEN as error:
            _fail("imported", error)
    return _kernels


def _fail(what: str, error: Exception) -> NoReturn:
    """Warn, once, and leave triton alone from here on."""
    global _objection
    _objection = f"triton cannot be {what}: {' '.join(str(error).split()) or type(error).__name__}"
    warnings.warn(f"rope_xp goes on without triton. {_objection}", RuntimeWarning, stacklevel=2)
    raise Unavailable(_objection) from error


def rotate(out: Tensors, arrays: Tensors, how: How) -> None:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    device = arrays[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            _rotate(out, arrays, how)
    else:
        _rotate(out, arrays, how)


def _rotate(out: Tensors, arrays: Tensors, how: How) -> None:
    kernels = load()
    launches = _launches(out, arrays, how)
    try:
        ready = [kernels.ready(plan.variant, arrays[0].device.index) for plan, _ in launches]
    except (*BROKEN, AssertionError, subprocess.SubprocessError, kernels.Error) as error:
        # The driver may load no kernel while a CUDA graph is captured, and loads it at other times.
        if arrays[0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise
        _fail("used", error)
    for run, (plan, tensors) in zip(ready, launches, strict=True):
        run(plan.grid, tensors, plan.numbers)


def _launches(out: Tensors, arrays: Tensors, how: How) -> list[tuple[Plan, Tensors]]:
    """Return what is launched, with the tensors of each launch."""
    if arrays[0].dtype != arrays[-1].dtype:
        return [
            launch
            for x, y in zip(arrays, out, strict=True)
            for launch in _launches((y,), (x,), how)
        ]
    if not any(x.numel() for x in arrays):
        return []
    positions, table, table_2, table_3, components, axes, layout, offset, inverse = how
    pairs = table.shape[-1]
    if table_3 is not None:
        pairs, angles = pairs // 2, _angles_of(positions, components)
    else:
        table, table_2, angles = _given(table, table_2)
    plan = _triton_plan.plan(
        tuple([_operand(x, y) for x, y in zip(arrays, out, strict=True)]),
        angles,
        _NAMES[arrays[0].dtype],
        axes,
        layout,
        offset,
        pairs,
        inverse,
        _processors(arrays[0].device),
    )
    if plan is None:
        return [launch for part in _split(out, arrays, how) for launch in _launches(*part)]
    # A kernel reads nothing from those that there are not, but wants an address.
    others = [table if x is None else x for x in (table_3, positions, components)]
    return [(plan, (arrays[0], out[0], arrays[-1], out[-1], table, table_2, *others))]


def _operand(x: torch.Tensor, out: torch.Tensor) -> Operand:
    at, to = x.data_ptr(), out.data_ptr()
    return Operand(x.shape, x.stride(), out.stride(), at == to, math.gcd(ACCESS, at | to))


_COUNTED = Angles("counted", (), (), "int64", ACCESS)


def _angles_of(positions: torch.Tensor | None, components: torch.Tensor | None) -> Angles:
    if positions is None:
        return _COUNTED
    if components is not None:
        name, steps = _NAMES[positions.dtype], positions.stride()
        shape = positions.shape
        return Angles("components", shape[:-1], steps[:-1], name, ACCESS, shape[-1], steps[-1])
    return Angles("positions", positions.shape, positions.stride(), _NAMES[positions.dtype], ACCESS)


def _given(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Angles]:
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    alignment = math.gcd(ACCESS, cos.data_ptr() | sin.data_ptr())
    return cos, sin, Angles("tables", cos.shape[:-1], cos.stride()[:-1], "int64", alignment)


def _split(out: Tensors, arrays: Tensors, how: How) -> list[tuple[Tensors, Tensors, How]]:
    """Return one call for each index of the first batch axis."""
    where = _axes.parse(how.axes, arrays[0].ndim, "x")
    axis, ndim = where.batch[0], len(where.batch) + 1
    names = how.axes[:axis] + how.axes[axis + 1 :]
    looked_up = how.table_3 is not None
    own = ndim if how.components is None else ndim + 1
    return [
        (
            tuple([x.select(axis, i) for x in out]),
            tuple([x.select(axis, i) for x in arrays]),
            how._replace(
                axes=names,
                positions=None if how.positions is None else _at(i, how.positions, own),
                table=how.table if looked_up else _at(i, how.table, ndim + 1),
                table_2=how.table_2 if looked_up else _at(i, how.table_2, ndim + 1),
            ),
        )
        for i in range(arrays[0].shape[axis])
    ]


def _at(i: int, angles: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return the angles of one index of the first axis, if they have it."""
    return angles[min(i, angles.shape[0] - 1)] if angles.ndim == ndim else angles


@lru_cache(maxsize=64)
def _processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; a CPU stands for the smallest one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
