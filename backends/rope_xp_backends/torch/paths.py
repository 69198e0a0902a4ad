"""torch's fast paths: kernels behind one operator, and the reasons to decline a call."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from rope_xp._core.call import Call, TableLookup, get_interleaved, leaves
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu import launch
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.plan import KernelKey

from . import cpu, gpu, op, private
from .launches import specialize_launch
from .library import NAMES
from .op_args import OpArgs, build_op_args
from .signature import PLAIN, Tensors

Decline: TypeAlias = Callable[[torch.Tensor], str | None]

FUSED = {False: 1 << 18, True: 1 << 14}
"""Elements of q and k up to which inductor's code is faster than a graph that calls a kernel, by
whether pairs are interleaved, which inductor does not vectorise. Measured on two cores of Zen 4 by
asv_benchmarks/in_graph.py. Dynamo does not say which compiler it traces for: one that fuses
nothing, as "eager", runs plain operations, in four times the time."""


class Triton(Path):
    """Kernels compiled by Triton, for GPUs of CUDA and ROCm."""

    name = "triton"

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline what kernels cannot read and what an operator's derivative cannot follow."""
        return (
            _decline_any(call.arrays, _decline_for_gpu)
            or gpu.KERNELS.decline_reason()
            or gpu.device_decline_reason(call.arrays[0])
            or _decline_any(call.arrays, gpu.row_decline_reason)
            or _decline_for_operator(call, _decline_for_gpu)
            or (None if forced else _decline_export())
        )

    def run(self, call: Call) -> Tensors:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            gpu.KERNELS.load()
        return _call_operator(call, parts=False, double=False)

    def specialize(self, call: Call, signature: CallSignature, results: Tensors) -> Any:
        """Keep the launch, but for angles that are computed before it."""
        source = call.angles[0]
        if isinstance(source, TableLookup) and source.tables.low.dtype == torch.float64:
            return None
        return specialize_launch(call, signature, results, gpu.prepare_triton_launch)


class TorchLLVM(Path):
    """Kernels compiled by LLVM, on the tensors' own memory."""

    name = "llvm"
    makes_tables = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline the same for CPUs."""
        return (
            KERNELS.decline_reason(*_kernel_keys(call))
            or _decline_any(call.arrays, _decline_for_cpu)
            or _decline_for_operator(call, _decline_for_cpu)
            or (None if forced else _decline_export() or _decline_small(call))
        )

    def run(self, call: Call) -> Tensors:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            for key in _kernel_keys(call):
                KERNELS.get(key)
        return _call_operator(call)

    def specialize(self, call: Call, signature: CallSignature, results: Tensors) -> Any:
        """Keep the kernel and its parameters."""
        return specialize_launch(call, signature, results, _prepare_llvm_launch)


def _prepare_llvm_launch(out: Tensors, arrays: Tensors, op_args: OpArgs) -> cpu.LLVMLaunch:
    angle_inputs = cpu.cast_angle_inputs(op_args, arrays[0].dtype)
    return cpu.prepare_llvm_launch(out, arrays, op_args, angle_inputs)


def _kernel_keys(call: Call) -> list[KernelKey]:
    return launch.get_kernel_keys(call.spec, [NAMES[x.dtype] for x in call.arrays])


def _call_operator(call: Call, **support: bool) -> Tensors:
    results: Tensors = ()
    for arrays, out, source in call.groups(call.out or (), one_dtype=True):
        op_args = build_op_args(portable.for_kernel(call, source, **support), call.spec)
        if out:
            op.write_op(out, arrays, op_args)
        else:
            results += op.apply_op(arrays, op_args)
    return call.out or results


# --- reasons to decline --------------------------------------------------------------------------


def _decline_export() -> str | None:
    return "an exported program runs without rope_xp" if private.is_exporting() else None


def _decline_small(call: Call) -> str | None:
    """Return why a size that is known to be small is left to the compiler of a graph."""
    if not torch.compiler.is_compiling():
        return None
    most = FUSED[any(get_interleaved(call.spec))]
    few = private.is_known_true(sum([x.numel() for x in call.arrays]) <= most)
    return "inductor makes one loop of it and its neighbours" if few else None


def _decline_any(tensors: Tensors, decline: Decline) -> str | None:
    for x in tensors:  # torch 2.6 does not trace next() with a default
        reason = decline(x)
        if reason is not None:
            return reason
    return None


def _decline_for_cpu(x: torch.Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"its kernels are for CPUs, and a tensor is on {x.device}"
    return _decline_subclass(x)


def _decline_for_gpu(x: torch.Tensor) -> str | None:
    if x.device.type not in gpu.DEVICES:
        return f"its kernels are for GPUs of CUDA and ROCm, and a tensor is on {x.device}"
    return _decline_subclass(x)


def _decline_subclass(x: torch.Tensor) -> str | None:
    if type(x) not in PLAIN:
        return f"{type(x).__name__} is a tensor of another kind"
    return None


def _decline_for_operator(call: Call, decline: Decline) -> str | None:
    if not _can_follow_transforms():
        return "this transform needs plain operations"
    if angles_need_gradient(call):
        return "a derivative with respect to angles needs plain operations"
    return None if call.out is None else _decline_out(call.out, decline)


def _can_follow_transforms() -> bool:
    """Return whether the operator supports every transform that is active."""
    if not private.are_transforms_active():
        return not private.is_forward_mode()
    return not torch.compiler.is_compiling() and private.are_transforms_reverse()


def angles_need_gradient(call: Call) -> bool:
    """Return whether autograd records operations on the angles of a call."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf.array, torch.Tensor) and leaf.array.requires_grad
        for source in call.angles
        for leaf in leaves(source)
    )


def _decline_out(out: Tensors, decline: Decline) -> str | None:
    if torch.compiler.is_compiling() or private.are_transforms_active():
        return "a compiler or transform cannot follow out="
    if any(x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1) for x in out):
        return "the last axis of out is not contiguous, or holds negated numbers"
    return _decline_any(out, decline)
