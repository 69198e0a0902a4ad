"""Engines that look up a table before the kernel, or hand it to an operator with positions."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp._arguments import table_forms
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._box import Function
from rope_xp.testing.conventions._adapt import LENGTH, Positions, adapt, check, count_sections


def _look_up(rope: RoPE, head_dim: int, form: str, p: Positions, like: Array) -> list[Array]:
    """Return the rows of positions of the tables of a form, of the dtype of a tensor."""
    cos, sin = rope.cos_sin(p, head_dim, dtype=np.float64)
    tables = table_forms.arrange(form, rope.layout, cos, sin)
    return [like.new_tensor(table) for table in tables]


def huggingface(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``apply_rotary_pos_emb(q, k, cos, sin)`` of q (batch, heads, tokens, head_dim).

    cos is (batch, tokens, r), each angle twice, in the order of the layout. Source: transformers,
    models/llama/modeling_llama.py of 5.24.
    """
    rope = check(rope, head_dim, ("half", "interleaved", "interleaved_to_half"), components=True)
    return _adapt_looked_up(kernel, rope, head_dim)


def liger(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``liger_rotary_pos_emb(q, k, cos, sin)``, whose arrays are those of `huggingface`.

    If the rope has components: ``liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section)``,
    with cos (components, batch, tokens, head_dim). Source: Liger-Kernel, transformers/rope.py at
    00fb8bf.
    """
    rope = check(rope, head_dim, ("half",), components=True)
    sections = [] if rope.position_axes is None else [count_sections(rope)[0]]
    return _adapt_looked_up(kernel, rope, head_dim, *sections)


def _adapt_looked_up(kernel: Function, rope: RoPE, head_dim: int, *sections: list[int]) -> Function:
    """Return a function around kernel(q, k, cos, sin), with tables of components for sections."""
    looked_up = replace(rope, position_axes=None) if sections else rope

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        return kernel(q, k, *_look_up(looked_up, head_dim, "huggingface", p, q), *sections)[:2]

    return adapt(kernel, rope, rotate, "bhsd")


def megatron(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``_apply_rotary_pos_emb_bshd(t, freqs, rotary_interleaved, mla_.., mscale)``.

    t is (tokens, batch, heads, head_dim); freqs (tokens, batch, 1, r), angles in float32.
    ``mla_rotary_interleaved`` is for "interleaved_to_half". Source: Megatron-LM, models/common/
    embeddings/rope_utils.py at 00c51e1.
    """
    rope = check(rope, head_dim, ("half", "interleaved", "interleaved_to_half"), components=True)
    options = {
        "rotary_interleaved": rope.layout == "interleaved",
        "mla_rotary_interleaved": rope.layout == "interleaved_to_half",
        "mscale": rope.attention_factor,
    }

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        (angles,) = _look_up(rope, head_dim, "megatron", p.swapaxes(-1, -2), q.float())
        freqs = angles.reshape(*q.shape[:2], 1, -1)
        return [kernel(x.contiguous(), freqs, **options) for x in (q, k)]

    return adapt(kernel, rope, rotate, "sbhd")


def onnx(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``RotaryEmbedding(X, cos_cache, sin_cache, position_ids)`` of numpy arrays.

    X is (batch, heads, tokens, head_dim), the tables (rows, r/2). The attributes are passed as
    options: interleaved, rotary_embedding_dim (0 for all). Source: ONNX, operators of opset 23, in
    1.23.
    """
    rope = check(rope, head_dim)
    tables = rope.table(LENGTH, head_dim, form="onnx", dtype=np.float32)
    options = {
        "interleaved": int(rope.layout == "interleaved"),
        "rotary_embedding_dim": 0 if rope.rotary_dim == head_dim else rope.rotary_dim,
    }

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        return [kernel(x, *tables, p, **options) for x in (q, k)]

    return adapt(kernel, rope, rotate, "bhsd", np.array, limit=LENGTH)
