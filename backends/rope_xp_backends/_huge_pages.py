"""Memory of results in pages of 2 MB, which Linux gives in a quarter of the time.

numpy asks for them by itself, torch only where its environment variable THP_MEM_ALLOC_ENABLE is
set. The memory stays torch's own; a tensor around numpy's could not be resized.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

FROM_BYTES = 1 << 22
"""As numpy has it: smaller memory is reused by the allocator, and mapped already."""
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_libc = ctypes.CDLL(None) if sys.platform == "linux" and _ADVICE is not None else None
if _libc is not None:
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def advise(tensor: Any) -> None:
    """Have the memory of a tensor on the CPU in huge pages, if it is large.

    It is no more than advice: where it is refused, only the time to fill the memory changes.
    """
    size = tensor.nbytes
    if _libc is not None and size >= FROM_BYTES:
        start = tensor.data_ptr()
        whole = -start % mmap.PAGESIZE
        _libc.madvise(start + whole, size - whole & -mmap.PAGESIZE, _ADVICE)
