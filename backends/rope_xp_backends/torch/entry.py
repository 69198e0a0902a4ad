"""Calls on tensors of a CPU as users write them, run by the native module at once."""

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rope_xp_backends.cpu import entry, native, threads

from . import private
from .results import allocate_result


def limit_threads() -> int:
    """Return how many threads may run: torch's own limit holds too, which obeys OpenMP's."""
    return min(threads.limit(openmp=False), torch.get_num_threads())


def _allocate(shape: list[int], wide: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float64 if wide else torch.float32, device="cpu")


def is_available() -> bool:
    """Return whether the native module reads tensors, and sees what else does."""
    functions = private.OBSERVERS
    return native.MISSING is None and private.dlpack_exchange is not None and all(functions)


if is_available():
    kinds = torch.Tensor, torch.nn.Parameter
    if native.module.set_up_torch(*kinds, private.dlpack_exchange):
        entry.set_up(
            entry.TORCH,
            torch.empty_like,
            _allocate,
            limit_threads,
            allocate_result,
            *private.OBSERVERS,
            torch.is_grad_enabled,
            torch.is_inference_mode_enabled,
            torch.Tensor.is_neg,
            private.increment_versions,
            torch.autograd.forward_ad,
        )


def _decline(*_: Any) -> None:
    """Leave a call to the slow path."""


native_rotate_by_rope = native_rotate_by_tables = native_look_up_angles = _decline
if native.MISSING is None:
    native_rotate_by_rope = native.module.rotate_by_rope
    native_rotate_by_tables = native.module.rotate_by_tables
    native_look_up_angles = native.module.look_up_angles


def rotate_by_rope(
    rope: Any,
    q: Any,
    k: Any,
    positions: Any,
    k_positions: Any,
    axes: Any,
    out: Any,
    norm: Any,
    how: int,
) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    if is_dynamo_compiling():
        return None
    results = native_rotate_by_rope(rope, q, k, positions, k_positions, axes, out, norm, how)
    if results is not None:
        return results
    if _is_on_gpu(q):
        from . import gpu_calls

        call = rope, q, k, positions, k_positions, axes, out, norm, how
        return gpu_calls.rotate_by_rope(*call)
    if q.requires_grad and out is None and norm is None and k_positions is None:
        from . import recorded

        return recorded.rotate_by_rope(rope, q, k, positions, axes, how)
    return None


def rotate_by_tables(
    layout: Any,
    rotary_dim: Any,
    rotary_offset: Any,
    columns: int,
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    axes: Any,
    out: Any,
    norm: Any,
    how: int,
) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    if is_dynamo_compiling():
        return None
    slice_ = layout, rotary_dim, rotary_offset, columns
    results = native_rotate_by_tables(*slice_, q, k, cos, sin, axes, out, norm, how)
    if results is not None:
        return results
    if _is_on_gpu(q):
        from . import gpu_calls

        return gpu_calls.rotate_by_tables(slice_, q, k, cos, sin, axes, out, norm, how)
    if q.requires_grad and out is None and norm is None:
        from . import recorded

        return recorded.rotate_by_tables(slice_, q, k, cos, sin, axes, how)
    return None


def look_up_angles(
    rope: Any, positions: Any, like: Any, head_dim: int | None, inverse: bool
) -> Any:
    """See :meth:`rope_xp.backend.Backend.look_up_angles`."""
    if is_dynamo_compiling():
        return None
    return native_look_up_angles(rope, positions, like, head_dim, inverse)


def _is_on_gpu(x: torch.Tensor) -> bool:
    from . import gpu  # which needs what needs this module

    return x.device.type in gpu.DEVICES
