"""Memory for results, and what autograd hears of it."""

import ctypes
import mmap
import os
from collections.abc import Callable

import torch

from . import private

# Most of the time that it takes to fill a large result goes into mapping its pages: with pages of
# 2 MB a third of that with pages of 4 KB. numpy requests them by itself, torch only where its
# environment variable THP_MEM_ALLOC_ENABLE is set. The memory stays torch's own, as a tensor around
# numpy's could not be resized.

HUGE_BYTES = 1 << 22
"""numpy's threshold: the allocator reuses smaller memory, which is mapped already."""

_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
"""Only Linux has it."""
_libc = None
if _HUGE is not None and os.environ.get("ROPE_XP_HUGE_PAGES") != "0":
    _libc = ctypes.CDLL(None)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def allocate_result(x: torch.Tensor) -> torch.Tensor:
    """Return memory for a result, on the CPU in huge pages where it is large."""
    result = empty_result(x)
    if _libc is not None and x.device.type == "cpu" and result.nbytes >= HUGE_BYTES:
        address, size = result.data_ptr(), result.nbytes
        offset = -address % mmap.PAGESIZE
        # Where the system refuses, nothing changes.
        _libc.madvise(address + offset, size - offset & -mmap.PAGESIZE, _HUGE)
    return result


def empty_result(x: torch.Tensor) -> torch.Tensor:
    """Return an empty result with the strides of x, but a contiguous head_dim."""
    if x.stride(-1) == 1:
        result = torch.empty_like(x)
        # Beside an axis of length 1 and stride 1, torch may put one of stride 0 behind head_dim.
        if result.stride(-1) == 1:
            return result
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def find_allocator(arrays: tuple[torch.Tensor, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what allocates results on a GPU for tensors that lie like these, in least time."""
    # Asked without memory, of which a large result would take as much again.
    made = [torch.empty_like(x, device="meta") for x in arrays]
    is_plain = all(x.stride(-1) == 1 == y.stride(-1) for x, y in zip(arrays, made, strict=True))
    return torch.empty_like if is_plain else empty_result


def bump_versions(out: tuple[torch.Tensor, ...]) -> None:
    """Bump version counters after an in-place write, so that autograd notices it."""
    private.increment_versions([x for x in out if not x.is_inference()])
