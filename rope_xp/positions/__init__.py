"""Positions for common arrangements of tokens. Optional: any integers or floats are positions.

``packed``, ``offsets``, ``from_mask``, ``from_segments``, and ``zigzag`` with packed sequences,
take and return arrays of any library and can be compiled. The others take Python numbers and return
numpy arrays, or arrays of ``xp``: int64, in jax int32. All raise RopeError if a number is not an
integer or is out of range, or if an array has the wrong axes or dtype.
"""

from rope_xp.positions._patches import grid, mrope, mrope_from_ids, text, video
from rope_xp.positions._sequences import from_mask, from_segments, offsets, packed, zigzag

__all__ = [
    "from_mask",
    "from_segments",
    "grid",
    "mrope",
    "mrope_from_ids",
    "offsets",
    "packed",
    "text",
    "video",
    "zigzag",
]
