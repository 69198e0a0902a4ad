"""Calls on tensors of a CPU as users write them, run by the native module at once."""

from typing import Any

import torch

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
