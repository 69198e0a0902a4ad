"""Positions for common arrangements of tokens. Optional: any integers or floats are positions.

``packed``, ``offsets``, and ``zigzag`` with packed sequences, take and return arrays of any library
and run under its compilers. The others take Python numbers, and return numpy arrays unless ``xp``
names another library.
"""

from rope_xp.positions._mrope import mrope, mrope_from_ids
from rope_xp.positions._packed import offsets, packed
from rope_xp.positions._patches import grid, text, video
from rope_xp.positions._shards import zigzag

__all__ = ["grid", "mrope", "mrope_from_ids", "offsets", "packed", "text", "video", "zigzag"]
