"""Scalings change the frequencies of a rotary embedding, in numpy float64.

A scaling is any hashable object with the members of :class:`Scaling`, passed as
``RoPE(scaling=...)``. Fields have the names of their keys in Hugging Face configurations; numbers
are positive. A field that is out of range raises RopeError, and TypeError if it has the wrong type.
``frequencies`` raises RopeError if rotary_dim does not fit the fields, or if it needs a length and
none is fixed by :meth:`Scaling.for_length`.

In all formulae r is rotary_dim, the even number of rotated components, i = 0 ... r/2 - 1,
w_i = base ** (-2 i / r) the unscaled frequency, and L the tokens of the trained context.
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
