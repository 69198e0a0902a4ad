"""Calls on tensors of a CPU as users write them, run by the native module at once."""

from typing import Any

import torch

from rope_xp_backends.cpu import entry, native, threads
from rope_xp_backends.cpu.native import DTYPES, Description

from . import private
from .results import allocate_result


def limit_threads() -> int:
    """Return how many threads may run: torch's own limit holds too, which obeys OpenMP's."""
    return min(threads.limit(openmp=False), torch.get_num_threads())


def _allocate(shape: list[int], kind: int) -> torch.Tensor:
    return torch.empty(shape, dtype=_KINDS[kind], device="cpu")


_KINDS = torch.float32, torch.float64, torch.int64


_DTYPES = {getattr(torch, name): number for number, name in enumerate(DTYPES)}


def describe(x: torch.Tensor) -> Description:
    """Describe a tensor, where torch is too old to let the native module read it."""
    number, size = _DTYPES.get(x.dtype, len(DTYPES)), x.element_size()
    is_plain = x.layout is torch.strided and x.device.type == "cpu" and not x.is_nested
    try:
        address = x.data_ptr() if is_plain else None
    except RuntimeError:  # of batched gradients, which only look plain
        address = None
    if address is None:
        return 0, len(DTYPES), (), (), False
    return address, number, tuple(x.shape), tuple([n * size for n in x.stride()]), True


def set_up(capsule: Any) -> bool:
    """Let the entry take tensors. Return whether it reads them by DLPack."""
    functions: tuple[Any, ...] = (
        describe,
        limit_threads,
        torch.empty_like,
        _allocate,
        allocate_result,
    )
    functions += (*private.OBSERVERS, torch.is_grad_enabled, torch.is_inference_mode_enabled)
    functions += (torch.Tensor.is_neg, private.increment_versions, torch.autograd.forward_ad)
    kinds = torch.Tensor, torch.nn.Parameter
    reads: bool = native.module.set_up_library(entry.TORCH, *kinds, capsule, functions)
    return reads


if native.MISSING is None:
    set_up(private.dlpack_exchange)


def _decline(*_: Any) -> None:
    """Leave a call to the slow path."""


sign_tensors = getattr(native.module, "sign_tensors", _decline)
native_rotate_by_rope = getattr(native.module, "rotate_by_rope", _decline)
native_rotate_by_tables = getattr(native.module, "rotate_by_tables", _decline)
native_look_up_angles = getattr(native.module, "look_up_angles", _decline)
native_multiply_angles = getattr(native.module, "multiply_angles", _decline)
native_accumulate_angles = getattr(native.module, "accumulate_angles", _decline)
