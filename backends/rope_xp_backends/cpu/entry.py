"""What the native entry asks Python once for a rope, and is given for each library.

``module.rotate_by_rope`` and its likes take calls as users write them. See call.cpp and entry.cpp.
"""

import sys
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp._core.tables import DigitTables, SmallTables, make_table_key
from rope_xp._dispatch.choose import choice
from rope_xp._rotation.tables import host_tables, small_tables
from rope_xp.norm import QKNorm

from . import native, threads
from .native import DTYPES, Description

NUMPY, TORCH = 1, 2
"""Libraries, by their numbers."""
C_API = getattr(sys.modules.get("numpy._core._multiarray_umath"), "_ARRAY_API", None)
"""Where compiled extensions find numpy's C API, by which the native module knows its ABI."""


def find_tables(
    rope: Any, head_dim: int, inverse: bool, wide: bool, every_row: bool
) -> tuple[Any, ...] | None:
    """Return the handle of a rope's tables, its layout on input and output, its slice and pairs.

    None where the slow path raises, or where a class of the user may change.
    """
    if not hasattr(type(rope), "_handles"):
        return None
    part = rope
    while part is not None:  # some scaling has one of its own
        if type(part).__module__.partition(".")[0] != "rope_xp":
            return None
        part = getattr(part, "scaling", None)
    table_key = make_table_key(rope, head_dim, bool(inverse), bool(wide))
    try:
        r, offset = slice_of(rope, head_dim)
        tables: DigitTables | SmallTables
        tables = host_tables(table_key) if every_row else small_tables(table_key)
    except RopeError:
        return None
    handle = tables.handle or native.read_tables(tables)
    return handle, rope.layout != "half", rope.layout == "interleaved", offset, r // 2


def describe(x: np.ndarray) -> Description:
    """Describe an array that the native module cannot read by its fields, see ``Description``."""
    name = x.dtype.name
    if name == "bfloat16" and x.dtype.isnative:  # whose package may be imported after ours
        _set_up_dtypes(x.dtype)
    is_known = name in DTYPES and x.dtype.isnative and x.flags.aligned
    number = DTYPES.index(name) if is_known else len(DTYPES)
    return x.ctypes.data, number, x.shape, x.strides, x.flags.writeable


def _set_up_dtypes(bfloat16: np.dtype | None) -> None:
    dtypes = [bfloat16 if name == "bfloat16" else np.dtype(name) for name in DTYPES]
    native.module.set_up_dtypes(tuple(dtypes))


def _allocate(shape: list[int], kind: int) -> np.ndarray:
    return np.empty(shape, (np.float32, np.float64, np.int64)[kind])


def set_up_numpy(capsule: Any) -> bool:
    """Let the entry take arrays of numpy. Return whether it reads their fields."""
    functions = describe, threads.limit, np.empty_like, _allocate
    kinds = np.ndarray, np.memmap
    has_fields: bool = native.module.set_up_library(NUMPY, *kinds, capsule, functions)
    return has_fields


if native.MISSING is None:
    native.module.set_up_calls(QKNorm, choice, find_tables)
    _set_up_dtypes(None)
    if not set_up_numpy(C_API):
        native.LOG.warning("rope_xp reads arrays of this numpy by their attributes, which is slow")
