"""From a kernel with an engine's signature to what ``identify`` and ``assert_rotates`` take.

Each function takes the kernel, a RoPE and head_dim, and returns ``function(q, k, positions)`` of
arrays (batch, heads, tokens, head_dim). The RoPE gives the tables and options that the engine
passes to the kernel; RopeError if the engine has no such RoPE. Kernels get tensors of torch, those
of ONNX and ggml arrays of numpy, and those of mlx its arrays. A docstring names the signature
and its source, as read in November 2026.

Examples
--------
>>> import rope_xp
>>> from rope_xp.testing import assert_rotates, conventions
>>> rope = rope_xp.RoPE(layout="half")
>>> def kernel(x, cos_cache, sin_cache, position_ids, interleaved, rotary_embedding_dim):
...     cos, sin = cos_cache[position_ids], sin_cache[position_ids]
...     return rope_xp.apply_tables(x, cos, sin, layout="half", axes="bhsd")
>>> assert_rotates(conventions.onnx(kernel, rope, 16), rope, 16)
"""

from rope_xp.testing.conventions._engines import (
    fla,
    flash_attn,
    flashinfer,
    sglang,
    transformer_engine,
    vllm,
)
from rope_xp.testing.conventions._libraries import ggml, huggingface, liger, megatron, mlx, onnx

__all__ = [
    "fla",
    "flash_attn",
    "flashinfer",
    "ggml",
    "huggingface",
    "liger",
    "megatron",
    "mlx",
    "onnx",
    "sglang",
    "transformer_engine",
    "vllm",
]
