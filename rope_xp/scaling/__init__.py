"""Scalings change the frequencies of a rotary embedding, in numpy float64.

A scaling is a hashable instance of a class derived from :class:`Scaling`, passed as
``RoPE(scaling=...)``. Fields have the same names as in Hugging Face configurations. Numbers are
positive. A field out of range raises RopeError, a field of the wrong type TypeError.
``frequencies`` raises RopeError if rotary_dim does not fit the fields, or if it needs a length and
:meth:`Scaling.for_length` has not fixed one.

In all formulae r is rotary_dim, the even number of rotated components; i = 0 ... r/2 - 1 numbers
the pairs; w_i = base ** (-2 i / r) is the unscaled frequency; L is the trained context in tokens.
"""

from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._axial import Axial, RIFLEx
from rope_xp.scaling._base import Scaling
from rope_xp.scaling._long_context import LongRoPE, YaRN
from rope_xp.scaling._simple import NTK, DynamicNTK, Linear, Llama3, Proportional

__all__ = [
    "NTK",
    "Axial",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "RIFLEx",
    "Scaling",
    "YaRN",
    "inverse_frequencies",
]
