"""Attention with rotated queries and keys, as the papers have it: a reference to test against.

Exact and readable rather than fast, and the same on every library of the array API standard.
Compilers of torch and jax take it in one graph, and dask arrays give lazy ones. Nothing else in
rope_xp uses it. float16 and bfloat16 are computed in float32, rotation included, and rounded once;
float64 stays. Matrix products are those of the library: on a GPU, jax and torch may round float32
to fewer bits, see ``jax.default_matmul_precision`` and ``torch.set_float32_matmul_precision``.

Axes are (batch..., tokens, heads, head_dim), with any number of batch axes or none. Where k and v
have fewer heads than q, head i of q reads head ``i // (q heads / k heads)`` of them.
"""

from rope_xp.attention._linear import linear_attention
from rope_xp.attention._softmax import attention, scores
from rope_xp.attention._spans import global_pointer

__all__ = ["attention", "global_pointer", "linear_attention", "scores"]
