"""The position encodings that RoFormer reviews, to compare RoPE with.

Those of section 2 of Su et al., "RoFormer", arXiv 2104.09864, as plain functions of arrays, exact
and readable rather than fast: parameters are passed in, nothing is masked, and no softmax is taken.
All but :func:`sinusoidal` and :func:`t5_buckets` need memory for each pair of tokens.

RoFormer's eq. 4 is :func:`sinusoidal`; eq. 5 :func:`shaw` and :func:`shaw_values`; eq. 6 the
product of q + p and k + p, with p of :func:`sinusoidal`; eq. 7 :func:`transformer_xl`; eq. 8
:func:`t5_bias`; eq. 9 :func:`tupe`; eq. 10 :func:`deberta`. :func:`multiplicative` has none.

Every function of scores takes q and k of (batch..., tokens, heads, head_dim), then its parameters,
then by name ``positions``, ``k_positions`` and ``scale``, which :func:`shaw` describes. It returns
(batch..., heads, q tokens, k tokens) with the dtype, library and device of q, computed in float32,
in float64 for float64 q. A distance is the position of the query less that of the key, m - n, as
in RoFormer; :func:`t5_buckets` alone counts the other way, as T5 does. Positions are integers below
2**31 in modulus. Unlike :mod:`rope_xp.papers.attention`, q and k must have one dtype, and the
default scale is 1. Products of float32 matrices are as precise as the library is set to make them.

All functions raise RopeError where shapes do not fit or positions are out of range, and TypeError
where an array has another library, or a dtype that does not fit.
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
