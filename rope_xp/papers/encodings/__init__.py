"""The position encodings that RoFormer reviews, to compare RoPE with.

Section 2 of Su et al., "RoFormer", arXiv 2104.09864, sets RoPE beside what came before it. These
are those encodings as plain functions of arrays, exact and readable rather than fast: parameters
are passed in, nothing is masked, and no softmax is taken. All but :func:`sinusoidal` and
:func:`t5_buckets` need memory for each pair of tokens.

========================  ======  ================================================
function                  eq.     paper
========================  ======  ================================================
:func:`sinusoidal`        4       Vaswani et al., arXiv 1706.03762
:func:`shaw`              5       Shaw et al., arXiv 1803.02155
:func:`shaw_values`       5       the same, for the values
:func:`transformer_xl`    7       Dai et al., arXiv 1901.02860
:func:`t5_bias`           8       Raffel et al., arXiv 1910.10683
:func:`tupe`              9       Ke et al., arXiv 2006.15595
:func:`deberta`           10      He et al., arXiv 2006.03654
:func:`multiplicative`            Huang et al., arXiv 2009.13658
========================  ======  ================================================

Eq. 6 is what eq. 7 starts from: the product of sums q + p and k + p, written out. Add
:func:`sinusoidal` to the embeddings of tokens for it.

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
