"""The names of dtypes, as numpy spells them, and how long their elements are."""

import numpy as np

from rope_xp._core.caches import cached

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""What can be rotated, and the bytes of an element."""
NARROW = ("float16", "bfloat16")
"""Computed in float32."""
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})


@cached(64)
def numpy_name(dtype: np.dtype) -> str:
    """Return the name of a dtype of numpy, which numpy puts together at each call."""
    return dtype.name
