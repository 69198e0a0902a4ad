"""Attention with rotated queries and keys, as the papers define it: a reference to test against.

Exact and readable, not fast, for every library of the array API standard. Compilers of torch and
jax trace it in one graph, and dask stays lazy. float16 and bfloat16 are computed in float32,
including the rotation, and rounded once; float64 stays. On a GPU, jax and torch may round
products to fewer bits: ``jax.default_matmul_precision``, ``torch.set_float32_matmul_precision``.

Axes are (batch..., tokens, heads, head_dim), with any number of batch axes or none. Where k and v
have fewer heads than q, head i of q reads head ``i // (q heads / k heads)`` of them. Results have
the dtype, library and device of q. All functions raise RopeError if shapes, devices or positions do
not fit, or positions come without a rope; TypeError if an argument has the wrong type, or arrays
come from different libraries.
"""

from rope_xp.papers.attention._linear import linear_attention
from rope_xp.papers.attention._softmax import attention, global_pointer, scores

__all__ = ["attention", "global_pointer", "linear_attention", "scores"]
