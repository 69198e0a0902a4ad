"""Libraries whose kernels get the rows of positions, or compute angles."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rope_xp._arguments import table_forms
from rope_xp._core.typing import Array
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.rope import RoPE
from rope_xp.scaling import Linear
from rope_xp.testing._box import Function
from rope_xp.testing.conventions._adapt import LENGTH, Positions, adapt, check, count_sections

_LAYOUTS = ("half", "interleaved", "interleaved_to_half")
_NORMAL, _NEOX, _MROPE, _IMROPE = 0, 2, 8, 40


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
    rope = check(rope, head_dim, _LAYOUTS, components=True)

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        return kernel(q, k, *_look_up(rope, head_dim, "huggingface", p, q))[:2]

    return adapt(kernel, rope, rotate, "bhsd")


def liger(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``liger_rotary_pos_emb(q, k, cos, sin)``, whose arrays are those of `huggingface`.

    If the rope has components: ``liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section)``,
    with cos (components, batch, tokens, head_dim). Source: Liger-Kernel, transformers/rope.py at
    00fb8bf.
    """
    rope = check(rope, head_dim, ("half",), components=True)
    if rope.position_axes is None:
        return huggingface(kernel, rope, head_dim)
    (sections, _), one = count_sections(rope), replace(rope, position_axes=None)

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        return kernel(q, k, *_look_up(one, head_dim, "huggingface", p, q), sections)

    return adapt(kernel, rope, rotate, "bhsd")


def megatron(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``_apply_rotary_pos_emb_bshd(t, freqs, rotary_interleaved, mla_.., mscale)``.

    t is (tokens, batch, heads, head_dim); freqs (tokens, batch, 1, r), angles in float32.
    ``mla_rotary_interleaved`` is for "interleaved_to_half". Source: Megatron-LM, models/common/
    embeddings/rope_utils.py at 00c51e1.
    """
    rope = check(rope, head_dim, _LAYOUTS, components=True)
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


def ggml(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``ggml_rope_ext(a, b, c, n_dims, mode, n_ctx_orig, freq_base, freq_scale, ...)``.

    Arrays are numpy's, their axes in the order of numpy: a (1, tokens, heads, head_dim), b int32
    (tokens,), c frequency factors (n_dims/2,) or None. ``ext_factor, attn_factor, beta_fast,
    beta_slow`` follow; ext_factor is 0. If the rope has components: ``ggml_rope_multi`` with b (4 *
    tokens,) and four sections after n_dims. Source: llama.cpp, ggml.h at 004eaba.
    """
    rope = check(rope, head_dim, components=True)
    r, mode = rope.rotary_dim or head_dim, _NEOX if rope.layout == "half" else _NORMAL
    factors, scale = None, 1.0
    if isinstance(rope.scaling, Linear):
        scale = 1.0 / rope.scaling.factor
    elif rope.scaling is not None:
        factors = (inverse_frequencies(rope.base, r) / rope.frequencies(head_dim)).astype("float32")
    sections: tuple[Any, ...] = ()
    if rope.position_axes is not None:
        counts, turns = count_sections(rope)
        sections, mode = ([*counts, 0, 0][:4],), _IMROPE if turns else _MROPE
    last = (mode, 0, rope.base, scale, 0.0, rope.attention_factor, 32.0, 1.0)

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        flat = np.zeros((4 if sections else 1, p.shape[-2] * p.shape[-1]), np.int32)
        flat[: len(p) if sections else 1] = p.reshape(-1, flat.shape[1])
        options = (flat.ravel(), factors, r, *sections, *last)
        return [kernel(x[None], *options) for x in (q, k)]

    return adapt(kernel, rope, rotate, "nhd", np.array)


def mlx(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``mlx.core.fast.rope(x, dims, *, traditional, base, scale, offset, freqs)``.

    x is (batch, heads, tokens, head_dim), offset (batch,): a call for each run of consecutive
    positions. freqs are the reciprocals of frequencies, for scaling other than Linear.
    Source: mlx 0.32.
    """
    import mlx.core as mx

    rope = check(rope, head_dim, factor=False)
    options: dict[str, Any] = {"traditional": rope.layout == "interleaved", "freqs": None}
    options |= {"base": rope.base, "scale": 1.0}
    if isinstance(rope.scaling, Linear):
        options["scale"] = 1.0 / rope.scaling.factor
    elif rope.scaling is not None:
        options |= {"base": None, "freqs": mx.array(1.0 / rope.frequencies(head_dim), mx.float32)}

    def rotate(q: Array, k: Array, p: Positions) -> Any:
        ends = [0, *np.flatnonzero((np.diff(p) != 1).any(axis=0)) + 1, p.shape[1]]
        spans = [(a, b, mx.array(p[:, a])) for a, b in pairwise(ends)]
        parts = (
            [kernel(x[:, :, a:b], rope.rotary_dim, offset=n, **options) for a, b, n in spans]
            for x in (q, k)
        )
        return [mx.concatenate(of_one, axis=2) for of_one in parts]

    return adapt(kernel, rope, rotate, "bhsd", mx.array)
