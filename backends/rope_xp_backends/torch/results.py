"""Memory of results, and what autograd is told of it.

The system maps a large result and sets it to zero when it is first written to, which is most of the
time that filling it takes. In pages of 2 MB that takes a third of the time of pages of 4 KB. numpy
asks for them by itself; torch only where its environment variable THP_MEM_ALLOC_ENABLE is set. The
memory stays torch's own; a tensor around numpy's could not be resized.
"""

import ctypes
import mmap
import os

import torch

from .signature import Tensors

HUGE_FROM_BYTES = 1 << 22
"""As numpy has it: smaller memory is reused by the allocator, and mapped already."""

_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
"""Only Linux has it."""
_libc = None
if _HUGE is not None and os.environ.get("ROPE_XP_HUGE_PAGES") != "0":
    _libc = ctypes.CDLL(None)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def new(x: torch.Tensor) -> torch.Tensor:
    """Return memory for a result, on the CPU in pages of 2 MB where it is large."""
    made = like(x)
    if x.device.type == "cpu" and made.nbytes >= HUGE_FROM_BYTES:
        _advise_huge(made.data_ptr(), made.nbytes)
    return made


def like(x: torch.Tensor) -> torch.Tensor:
    """Return an empty result: with the strides of x, but head_dim is contiguous."""
    if x.stride(-1) == 1:
        made = torch.empty_like(x)
        # Beside an axis of length 1 and stride 1, torch may put one of stride 0 behind head_dim.
        if made.stride(-1) == 1:
            return made
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def usual(x: torch.Tensor) -> bool:
    """Return whether :func:`new` gives what torch itself would, for all that lie as x."""
    return x.nbytes < HUGE_FROM_BYTES and torch.empty_like(x).stride() == like(x).stride()


def _advise_huge(address: int, size: int) -> None:
    """Ask for huge pages, unless the user wants none. Where that is refused, nothing changes."""
    if _libc is not None:
        whole = -address % mmap.PAGESIZE
        _libc.madvise(address + whole, size - whole & -mmap.PAGESIZE, _HUGE)


def bump_versions(out: Tensors) -> None:
    """Have autograd know that tensors were written over."""
    for x in out:
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
