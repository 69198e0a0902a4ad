"""torch's fast paths: kernels behind one operator, and what keeps a call from it."""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from rope_xp._core.call import Call, TableLookup, leaves
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu import launch
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.plan import KernelKey

from . import cpu, gpu, launches, op, private
from .library import NAMES
from .op_args import OpArgs, build_op_args
from .signature import PLAIN, Tensors

FUSED = {False: 1 << 18, True: 1 << 14}
"""Numbers in q and k up to which inductor does better than a call from a graph to a kernel, by
whether pairs lie side by side, which it does not compute in vectors. On two cores of Zen 4, see
asv_benchmarks/in_graph.py. Nobody can ask Dynamo for what it traces: a backend that fuses nothing,
as "eager", runs plain operations, in four times the time."""


class Triton(Path):
    """Kernels compiled by Triton, for GPUs of CUDA and ROCm."""

    name = "triton"

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline what kernels cannot read and what an operator's derivative cannot follow."""
        return (
            _first(call, _not_for_gpu)
            or gpu.KERNELS.decline_reason()
            or gpu.too_old(call.arrays[0])
            or _first(call, gpu.too_large)
            or _not_for_operator(call, _not_for_gpu)
            or (None if forced else _exported())
        )

    def run(self, call: Call) -> tuple[torch.Tensor, ...]:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            gpu.KERNELS.load()
        return _rotated(call, parts=False, double=False)

    def specialize(self, call: Call, signature: CallSignature, results: Tensors) -> Any:
        """Keep the launch, but for angles that are computed before it."""
        source = call.angles[0]
        if isinstance(source, TableLookup) and source.tables.low.dtype == torch.float64:
            return None
        return launches.specialize(call, signature, results, gpu.prepare)


class LLVM(Path):
    """Kernels compiled by LLVM, on the tensors' own memory."""

    name = "llvm"
    makes_tables = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline the same for CPUs."""
        return (
            KERNELS.decline_reason(*_keys(call))
            or _first(call, _not_for_cpu)
            or _not_for_operator(call, _not_for_cpu)
            or (None if forced else _exported() or _fused(call))
        )

    def run(self, call: Call) -> tuple[torch.Tensor, ...]:
        """Call the operator, once for each source of angles."""
        if not torch.compiler.is_compiling():
            for key in _keys(call):
                KERNELS.get(key)
        return _rotated(call)

    def specialize(self, call: Call, signature: CallSignature, results: Tensors) -> Any:
        """Keep the kernel and its parameters."""
        return launches.specialize(call, signature, results, _prepare)


def _prepare(out: Tensors, arrays: Tensors, op_args: OpArgs) -> cpu.KernelLaunch:
    return cpu.prepare(out, arrays, op_args, cpu.angle_inputs_of(op_args, arrays[0].dtype))


def _keys(call: Call) -> list[KernelKey]:
    return launch.get_kernel_keys(call.spec, [NAMES[x.dtype] for x in call.arrays])


def _exported() -> str | None:
    """Return why graphs that are run elsewhere are left to plain operations."""
    return "an exported program runs without rope_xp" if private.is_exporting() else None


def _fused(call: Call) -> str | None:
    """Return why what is known to be small is left to the compiler of a graph."""
    if not torch.compiler.is_compiling():
        return None
    most = FUSED[any(call.spec.interleaved)]
    few = statically_known_true(sum([x.numel() for x in call.arrays]) <= most)
    return "inductor makes one loop of it and its neighbours" if few else None


def _rotated(call: Call, **known: bool) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = ()
    for arrays, out, source in call.groups(call.out or (), one_dtype=True):
        found = portable.for_kernel(call, source, **known)
        op_args = build_op_args(found, call.spec)
        if out:
            op.write(out, arrays, op_args)
        else:
            results += op.apply(arrays, op_args)
    return call.out or results


def _first(call: Call, decline_reason: Any) -> str | None:
    return next(filter(None, map(decline_reason, call.arrays)), None)


def _not_for_cpu(x: torch.Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"its kernels are for CPUs, and a tensor is on {x.device}"
    return _not_plain(x)


def _not_for_gpu(x: torch.Tensor) -> str | None:
    if x.device.type not in gpu.DEVICES:
        return f"its kernels are for GPUs of CUDA and ROCm, and a tensor is on {x.device}"
    return _not_plain(x)


def _not_plain(x: torch.Tensor) -> str | None:
    if type(x) not in PLAIN:
        return f"{type(x).__name__} is a tensor of another kind"
    return None


def _not_for_operator(call: Call, not_for_kernels: Any) -> str | None:
    if not _followed():
        return "this transform needs plain operations"
    if angles_need_gradient(call):
        return "a derivative with respect to angles needs plain operations"
    return None if call.out is None else _not_writeable(call.out, not_for_kernels)


def _followed() -> bool:
    """Return whether the operator can follow every transform that is active."""
    if not private.are_transforms_active():
        return not private.is_forward_mode()
    return not torch.compiler.is_compiling() and private.are_transforms_reverse()


def angles_need_gradient(call: Call) -> bool:
    """Return whether autograd records what happens to the angles of a call."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf.array, torch.Tensor) and leaf.array.requires_grad
        for source in call.angles
        for leaf in leaves(source)
    )


def _not_writeable(out: tuple[torch.Tensor, ...], not_for_kernels: Any) -> str | None:
    if torch.compiler.is_compiling() or private.are_transforms_active():
        return "a compiler or transform cannot follow out="
    for x in out:
        if x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1):
            return "the last axis of out is not contiguous, or holds negated numbers"
        reason: str | None = not_for_kernels(x)
        if reason is not None:
            return reason
    return None
