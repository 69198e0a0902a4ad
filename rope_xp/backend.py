"""What a backend is made of, for packages that bring one. See backends/README.md.

>>> from rope_xp.backend import Backend
>>> class Mine(Backend):
...     def recognises(self, x):
...         return type(x).__module__ == "mine"
"""

from rope_xp._contract.call import Call, Difference, Given, Lookup, Source, leaves, with_leaves
from rope_xp._contract.library import Digits, Recipe
from rope_xp._contract.memory import Memory
from rope_xp._contract.path import Path, Spread, Unavailable
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.kernels import Kernels
from rope_xp._rotation.portable import cos_sin, run

__all__ = [
    "Backend",
    "Call",
    "Difference",
    "Digits",
    "Given",
    "Kernels",
    "Lookup",
    "Memory",
    "Path",
    "Recipe",
    "Source",
    "Spread",
    "Unavailable",
    "cos_sin",
    "leaves",
    "run",
    "with_leaves",
]
