"""Positions for common arrangements of tokens. Optional: any integers or floats are positions.

``packed``, ``offsets``, and ``zigzag`` with packed sequences, take and return arrays of any library
and run under its compilers. The others take Python numbers, and return numpy arrays unless ``xp``
names another library: int64, in jax int32. All raise RopeError where a number is not an integer or
out of range, or an array has other axes or dtypes than they take.
"""

from rope_xp.positions._mrope import mrope, mrope_from_ids
from rope_xp.positions._patches import grid, text, video
from rope_xp.positions._sequences import offsets, packed, zigzag

__all__ = ["grid", "mrope", "mrope_from_ids", "offsets", "packed", "text", "video", "zigzag"]
