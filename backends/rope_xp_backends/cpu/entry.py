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

from . import native
from .native import DTYPES, Description

NUMPY, TORCH = 1, 2
"""Libraries, by their numbers."""


def find_tables(
    rope: Any, head_dim: int, inverse: bool, wide: bool, every_row: bool
) -> tuple[Any, ...] | None:
    """Return the handle of a rope's tables, its layout on input and output, its slice and pairs.

    None where the slow path raises, or where a class of the user may change.
    """
    part = rope if hasattr(type(rope), "_handles") else None
    if part is None:
        return None
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
    handle = tables.handle or native.read_tables(tables, describe)
    return handle, rope.layout != "half", rope.layout == "interleaved", offset, r // 2


def describe(x: np.ndarray) -> Description:
    """Describe an array that the native module cannot read by its fields, see ``Describe``."""
    name = x.dtype.name
    if name == "bfloat16" and x.dtype.isnative:
        read_by_fields(x.dtype)  # its package was imported after ours
    is_known = name in DTYPES and x.dtype.isnative and x.flags.aligned
    number = DTYPES.index(name) if is_known else len(DTYPES)
    return x.ctypes.data, number, x.shape, x.strides, x.flags.writeable


def read_by_fields(bfloat16: Any = None) -> None:
    """Let the native module read arrays by their fields, where these are as numpy 2 has them."""
    if native.MISSING is not None or sys.implementation.name != "cpython":
        return
    if bfloat16 is None:
        bfloat16 = getattr(sys.modules.get("ml_dtypes"), "bfloat16", None)
    dtypes = [bfloat16 and np.dtype(bfloat16) if n == "bfloat16" else np.dtype(n) for n in DTYPES]
    examples = np.ones((2, 3), np.float32), np.ones((4, 5, 6))[::2, :, ::-1], np.ones(0, np.int64)
    probes = []
    for x in (*examples, np.broadcast_to(examples[0], (4, 2, 3))):
        number = DTYPES.index(x.dtype.name)
        probes.append((x, x.ctypes.data, number, x.shape, x.strides, x.flags.num))
    if not native.module.set_up_numpy(
        np.ndarray, np.memmap, tuple(dtypes), tuple(probes), describe
    ):
        native.LOG.warning("rope_xp reads arrays of this numpy by their attributes, which is slow")


def set_up(library: int, *functions: Any) -> None:
    """Let the entry take arrays of a library, by functions that entry.cpp names in this order."""
    native.module.set_up_library(library, functions)


if native.MISSING is None:
    native.module.set_up_calls(QKNorm, choice, find_tables)
    read_by_fields()
