"""The position encodings that RoFormer reviews, to compare with RoPE.

They are from section 2 of Su et al., "RoFormer", arXiv 2104.09864, as plain functions of arrays:
exact and readable, not fast. You pass the parameters; there is no mask and no softmax. All but
:func:`sinusoidal` and :func:`t5_buckets` need memory for each pair of tokens.

RoFormer's eq. 4 is :func:`sinusoidal`; eq. 5 :func:`shaw` and :func:`shaw_values`; eq. 6 the
product of q + p and k + p, with p of :func:`sinusoidal`; eq. 7 :func:`transformer_xl`; eq. 8
:func:`t5_bias`; eq. 9 :func:`tupe`; eq. 10 :func:`deberta`. :func:`multiplicative` has none.

Every function of scores takes q and k of (batch..., tokens, heads, head_dim), then its parameters,
then by name ``positions``, ``k_positions`` and ``scale``, which :func:`shaw` describes. It returns
(batch..., heads, q tokens, k tokens) with the dtype, library and device of q, computed in float32,
in float64 for float64 q. A distance is query position minus key position, m - n, as in RoFormer;
only :func:`t5_buckets` counts the other way, as T5 does. Positions are integers with absolute
values below 2**31, and lie less than 2**31 apart. Unlike in :mod:`rope_xp.papers.attention`, the
default scale is 1. The library's settings decide how precise products of float32 matrices are.

All functions raise RopeError if shapes do not fit or positions are out of range, and TypeError if
an array has another library, or a dtype that does not fit.
"""

from rope_xp.papers.encodings._buckets import t5_bias, t5_buckets, tupe
from rope_xp.papers.encodings._clipped import deberta, multiplicative, shaw, shaw_values
from rope_xp.papers.encodings._sinusoidal import sinusoidal, transformer_xl

__all__ = [
    "deberta",
    "multiplicative",
    "shaw",
    "shaw_values",
    "sinusoidal",
    "t5_bias",
    "t5_buckets",
    "transformer_xl",
    "tupe",
]
