"""Rounding to nearest, ties to even, spelled in float64: for comparison with what libraries do."""

import numpy as np

FORMATS = {"float32": (24, -126), "float16": (11, -14), "bfloat16": (8, -126)}
"""Bits of the significand, and the smallest exponent of a normal number."""


def nearest(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return the numbers of a dtype that are nearest to numbers of float64, as float64.

    A power of two divides without error, and so does rint's result multiply.
    """
    if dtype == "float64":
        return x
    bits, smallest = FORMATS[dtype]
    exponent = np.frexp(x)[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponent, smallest) - (bits - 1))
    return np.rint(x / unit) * unit
