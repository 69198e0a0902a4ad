"""Test a Triton kernel in Triton's interpreter, on a machine without a GPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

import rope_xp
from rope_xp.testing import assert_rotates, conventions


@triton.jit
def rotate_token(x, cos_sin, positions, heads, stride, d: tl.constexpr, r: tl.constexpr):
    """Rotate the halves of all heads of one token, in place."""
    token = tl.program_id(0)
    pairs = tl.arange(0, r // 2)
    row = cos_sin + tl.load(positions + token) * r
    cos, sin = tl.load(row + pairs), tl.load(row + r // 2 + pairs)
    for head in range(heads):
        first = x + token * stride + head * d + pairs
        a, b = tl.load(first), tl.load(first + r // 2)
        tl.store(first, a * cos - b * sin)
        tl.store(first + r // 2, b * cos + a * sin)


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate q and k in place, (tokens, heads * head_size): the signature of vLLM's operator."""
    assert is_neox
    for x in (query, key):
        heads, r = x.shape[1] // head_size, cos_sin_cache.shape[1]
        rotate_token[(len(x),)](x, cos_sin_cache, positions, heads, x.stride(0), head_size, r)


def test_rotary_embedding():
    rope = rope_xp.RoPE(layout="half", base=500000.0, rotary_dim=32)
    kernel = conventions.vllm(rotary_embedding, rope, 64)
    assert_rotates(kernel, rope, 64, seconds=60)
