"""Positions of common arrangements of tokens. Optional: any integers or floats are positions.

``packed``, ``offsets``, and ``zigzag`` of packed sequences, take and return arrays of any library,
and run under its compilers. The others are made of Python numbers alone, in numpy unless ``xp``
names another library.
"""

from rope_xp.positions._mrope import mrope, mrope_from_ids
from rope_xp.positions._packed import offsets, packed
from rope_xp.positions._patches import grid, text, video
from rope_xp.positions._shards import zigzag

__all__ = ["grid", "mrope", "mrope_from_ids", "offsets", "packed", "text", "video", "zigzag"]
