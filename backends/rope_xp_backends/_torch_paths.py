"""torch's fast paths: kernels behind one operator, and what keeps a call from it."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from rope_xp._contract import Angles, Call, Difference, Given, Lookup

from . import _compiled, _cpu, _torch_cpu, _torch_op, _triton
from ._cpu import Source
from ._torch_lasting import merged

PLAIN = (torch.Tensor, torch.nn.Parameter)
_EXPORTED = "an exported program runs without rope_xp"


class Triton:
    """Kernels compiled by Triton, for GPUs of CUDA and ROCm."""

    name = "triton"

    def declines(self, call: Call) -> str | None:
        """Decline what kernels cannot read and what an operator's derivative cannot follow."""
        return (
            _first(call, _not_for_gpu)
            or _triton.objection()
            or _triton.too_old(call.arrays[0])
            or _first(call, _triton.too_large)
            or _not_for_operator(call, _not_for_gpu)
        )

    def defers(self, call: Call) -> str | None:
        """Leave graphs that are run elsewhere to plain operations."""
        return _EXPORTED if _exporting() else None

    def run(self, call: Call) -> tuple[torch.Tensor, ...]:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            _triton.load()
        return _rotated(call, _source_of)


class Numba:
    """Kernels compiled by numba, on the tensors' own memory."""

    name = "numba"

    def declines(self, call: Call) -> str | None:
        """Decline what kernels cannot read and what an operator's derivative cannot follow."""
        return (
            _compiled.objection()
            or _first(call, _not_for_cpu)
            or _not_for_operator(call, _not_for_cpu)
        )

    def defers(self, call: Call) -> str | None:
        """Leave small calls to torch until there is a kernel, and graphs to be run elsewhere."""
        if torch.compiler.is_compiling():
            return _EXPORTED if _exporting() else None
        return _cpu.defers(call, tuple(_torch_cpu.NAMES[x.dtype] for x in call.arrays))

    def run(self, call: Call) -> tuple[torch.Tensor, ...]:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            for x in call.arrays:
                _compiled.kernel(_cpu.rotation_of(call).key(_torch_cpu.NAMES[x.dtype]))
        return _rotated(call, _cpu.source_of)


def _exporting() -> bool:
    # torch.compiler.is_exporting() of torch 2.11 is True in all that torch.compile traces:
    # https://github.com/pytorch/pytorch/issues/176347
    return torch.compiler._is_exporting_flag  # noqa: SLF001  # see above


def _source_of(call: Call, angles: Angles) -> Source:
    """Return where a kernel of Triton gets these angles: it knows components of positions too."""
    if (
        isinstance(angles, Lookup)
        and angles.components
        and angles.whole is not None
        and not (angles.wide or angles.part is not None or torch.compiler.is_compiling())
    ):
        return Source(angles.whole.movedim(0, -1), *merged(angles.tables))
    return _cpu.source_of(call, angles)


def _rotated(call: Call, source_of: Any) -> tuple[torch.Tensor, ...]:
    rotation = _cpu.rotation_of(call)
    results: tuple[torch.Tensor, ...] = ()
    for i, angles in enumerate(call.angles):
        part = slice(None) if len(call.angles) == 1 else slice(i, i + 1)
        how = _torch_op.how(source_of(call, angles), rotation)
        if call.out is None:
            results += _torch_op.apply(call.arrays[part], how)
        else:
            _torch_op.write(call.out[part], call.arrays[part], how)
    return call.out or results


def _first(call: Call, objection: Any) -> str | None:
    return next(filter(None, map(objection, call.arrays)), None)


def _not_for_cpu(x: torch.Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"its kernels are for CPUs, and a tensor is on {x.device}"
    return _not_plain(x)


def _not_for_gpu(x: torch.Tensor) -> str | None:
    if x.device.type not in _triton.DEVICES:
        return f"its kernels are for GPUs of CUDA and ROCm, and a tensor is on {x.device}"
    return _not_plain(x)


def _not_plain(x: torch.Tensor) -> str | None:
    if type(x) not in PLAIN:
        return f"{type(x).__name__} is a tensor of another kind"
    if x.layout is not torch.strided:
        return f"a tensor has the layout {x.layout}"
    return None


def _not_for_operator(call: Call, not_for_kernels: Any) -> str | None:
    if not _followed():
        return "this transform needs plain operations"
    if angles_need_gradient(call):
        return "a derivative with respect to angles needs plain operations"
    return None if call.out is None else _not_writeable(call.out, not_for_kernels)


def _followed() -> bool:
    """Return whether the operator can follow every transform that is active."""
    if not _torch_op.transformed():
        return forward_ad._current_level < 0  # noqa: SLF001  # torch has no public way to ask
    if torch.compiler.is_compiling():
        return False
    kinds = {level.key() for level in _functorch.get_interpreter_stack()}
    return kinds <= {_functorch.TransformType.Grad, _functorch.TransformType.Vmap}


def angles_need_gradient(call: Call) -> bool:
    """Return whether autograd records what happens to the angles of a call."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in _angle_inputs(call)
    )


def _angle_inputs(call: Call) -> list[torch.Tensor | None]:
    found: list[Any] = []
    for angles in call.angles:
        if isinstance(angles, Given):
            found += [angles.cos, angles.sin]
        elif isinstance(angles, Difference):
            found += [angles.new.whole, angles.new.part, angles.old.whole, angles.old.part]
        else:
            found += [angles.whole, angles.part]
    return found


def _not_writeable(out: tuple[torch.Tensor, ...], not_for_kernels: Any) -> str | None:
    if torch.compiler.is_compiling() or _torch_op.transformed():
        return "a compiler or transform cannot follow out="
    for x in out:
        if x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1):
            return "the last axis of out is not contiguous, or holds negated numbers"
        reason: str | None = not_for_kernels(x)
        if reason is not None:
            return reason
    return None
