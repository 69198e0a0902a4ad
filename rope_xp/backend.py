"""The parts of a backend, for packages that register one. See backends/README.md.

>>> from rope_xp.backend import Backend
>>> class Mine(Backend):
...     def recognises(self, x):
...         return type(x).__module__ == "mine"
"""

from rope_xp._core.call import AngleSource, Call, CosSin, TableLookup, leaves, with_leaves
from rope_xp._core.memory import Memory
from rope_xp._core.path import Path, PathUnavailable, ShardedExecutor
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.kernels import Kernels
from rope_xp._rotation.portable import cos_sin, run

__all__ = [
    "AngleSource",
    "Backend",
    "Call",
    "CosSin",
    "DigitTables",
    "Kernels",
    "Memory",
    "Path",
    "PathUnavailable",
    "ShardedExecutor",
    "TableKey",
    "TableLookup",
    "cos_sin",
    "leaves",
    "run",
    "with_leaves",
]
