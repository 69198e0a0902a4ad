"""torch's fast paths: kernels behind one operator, their cached launches, reasons to decline."""

from collections.abc import Container

import torch

from rope_xp._core.call import Call, get_interleaved, leaves
from rope_xp._core.path import Path
from rope_xp._rotation import portable
from rope_xp_backends.cpu import native

from . import gpu, library, op, private
from .library import PLAIN, Tensors
from .op_args import build_op_args
from .results import allocate_result

FUSED = {False: 1 << 18, True: 1 << 14}
"""Elements of q and k up to which inductor's code is faster than a graph that calls a kernel, by
whether pairs are interleaved, which inductor does not vectorise. Measured on two cores of Zen 4 by
asv_benchmarks/in_graph.py. Dynamo does not say which compiler it traces for: one that fuses
nothing, as "eager", runs plain operations, in four times the time."""


class Triton(Path):
    """Kernels compiled by Triton, for GPUs of CUDA and ROCm."""

    name = "triton"
    normalizes = takes_slots = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return (
            _decline_tensors(call, library.DEVICES, "GPUs of CUDA and ROCm")
            or gpu.KERNELS.decline_reason()
            or _decline_operations(call)
            or gpu.kernel_decline_reason(call)
            or (None if forced else _decline_export())
        )

    def run(self, call: Call) -> Tensors:
        if not torch.compiler.is_compiling():
            gpu.KERNELS.load()
        return _call_operator(call, on_gpu=True)


class TorchNative(Path):
    """Kernels of the native module, on the tensors' own memory."""

    name = "native"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return (
            native.decline_reason(call)
            or _decline_tensors(call, ("cpu",), "CPUs")
            or _decline_operations(call)
            or (None if forced else _decline_export() or _decline_small(call))
        )

    def run(self, call: Call) -> Tensors:
        return _call_operator(call)


PATHS = (Triton(), TorchNative())


def _call_operator(call: Call, *, on_gpu: bool = False) -> Tensors:
    if on_gpu and (call.slots is not None or len(call.angles) > 1):
        results = _launch_at_once(call)
        if results is not None:
            return results
    results = ()
    for part in call.split(one_dtype=True):
        source = portable.for_kernel(part, part.angles[0], on_gpu=on_gpu)
        op_args, weights = build_op_args(source, part.spec), _given_weights(part)
        tensors = *part.arrays, *op_args.angle_inputs, *weights
        if part.out is not None or op.is_unseen(tensors):
            results += op.run_kernel(part.out, part.arrays, op_args, weights)
        else:
            results += op.apply_op(part.arrays, op_args, weights)
    return call.out or results


def _launch_at_once(call: Call) -> Tensors | None:
    """Rotate q and k with angles of their own, or k to slots; None to do so one by one."""
    arrays, out, slots = call.arrays, call.out, call.slots
    sources = [portable.for_kernel(call, source, on_gpu=True) for source in call.angles]
    op_args, *own = [build_op_args(source, call.spec) for source in sources]
    k_args, weights = own[0] if own else None, _given_weights(call)
    is_one = k_args is None or (
        len(call.spec.axes.batch) < 2
        and arrays[0].dtype is arrays[1].dtype
        and gpu.can_share(op_args, k_args)
    )
    if slots is None:
        fits = is_one and op.is_unseen(arrays + (out or ()))
        run = op.run_kernel
        return run(out, arrays, op_args, weights, k_args) if fits else None
    out = allocate_result(arrays[0]) if out is None else out[0], slots.cache
    if is_one:
        return op.run_kernel(out, arrays, op_args, weights, k_args, slots)
    (q,) = op.run_kernel(out[:1], arrays[:1], op_args, weights[:1])
    return (q, *op.run_kernel(out[1:], arrays[1:], k_args or op_args, weights[1:], None, slots))


def _given_weights(call: Call) -> Tensors:
    return tuple([w for w in call.weights if w is not None])


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


def _decline_tensors(call: Call, devices: Container[str], hardware: str) -> str | None:
    for x in (*call.arrays, *(call.out or ()), *_given_weights(call)):
        if x.device.type not in devices:
            return f"its kernels are for {hardware}, and a tensor is on {x.device}"
        if type(x) not in PLAIN:
            return f"{type(x).__name__} is a tensor of another kind"
    return None


def _decline_operations(call: Call) -> str | None:
    """Return why the operator cannot follow transforms, gradients, norms or ``out``."""
    compiling, transformed = torch.compiler.is_compiling(), private.are_transforms_active()
    unsupported = private.is_forward_mode()
    if transformed:
        is_norm = call.spec.norm is not None
        unsupported = compiling or is_norm or not private.are_transforms_reverse()
    elif call.spec.norm is not None and not compiling:
        unsupported = unsupported or any(x.is_neg() for x in call.arrays + _given_weights(call))
    if unsupported:
        return "this transform, or a norm of negated tensors, needs plain operations"
    if angles_need_gradient(call):
        return "a derivative with respect to angles needs plain operations"
    if call.out is None:
        return None
    sees_operations = compiling or transformed or private.is_recorded()
    if sees_operations or any(map(private.is_functional, call.out)):
        return "a compiler, transform or mode that sees operations cannot follow out="
    if any(x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1) for x in call.out):
        return "the last axis of out is not contiguous, or holds negated numbers"
    return None


def angles_need_gradient(call: Call) -> bool:
    """Return whether autograd records operations on the angles of a call."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf.array, torch.Tensor) and leaf.array.requires_grad
        for source in call.angles
        for leaf in leaves(source)
    )
