"""Engines whose kernels look up tables: packed tokens with a position each, or sequences.

A sequence is a run of consecutive positions: an offset, and a length in ``cu_seqlens``. If each
batch entry is one, the kernel gets the batch; otherwise all sequences packed.
"""

from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.norm import QKNorm
from rope_xp.rope import RoPE
from rope_xp.scaling import Linear, Llama3
from rope_xp.testing._box import Function
from rope_xp.testing.conventions._adapt import (
    LENGTH,
    Positions,
    adapt,
    check,
    count_sections,
    find_runs,
    get_tables,
    to_integers,
    to_torch,
)


def vllm(kernel: Function, rope: RoPE, head_dim: int, *, norm: QKNorm | None = None) -> Function:
    """Adapt ``rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)``.

    It writes to query, (tokens, heads * head_size), and key. With ``norm``: ``fused_qk_norm_rope(
    qkv, heads_q, heads_k, heads_v, head_dim, eps, q_weight, k_weight, cos_sin_cache, is_neox,
    position_ids)``. If the rope has components: ``triton_mrope(q, k, cos, sin, mrope_section,
    head_size, rotary_dim, mrope_interleaved, is_neox)``, with cos (components, tokens, r/2); it
    returns q and k. Source: vLLM, _custom_ops.py at 0002bde, mrope.py at 055e47c.
    """
    rope, tables = check(rope, head_dim, components=True), get_tables(rope, head_dim, "vllm")
    is_neox = rope.layout == "half"

    def rotate(q: Array, k: Array, positions: Positions) -> Any:
        p = to_integers(positions.reshape(*positions.shape[:-2], -1), q, np.int64)
        (table,), flat = tables(q), (q.flatten(1), k.flatten(1))
        if norm is not None:
            import torch

            heads, qkv = (q.shape[1], k.shape[1], k.shape[1]), torch.cat((*flat, flat[1]), 1)
            given = norm.q_weight, norm.k_weight
            weights = [torch.as_tensor(w).to(q) + norm.offset for w in given]
            kernel(qkv, *heads, head_dim, norm.eps, *weights, table, is_neox, p)
            return qkv.tensor_split((flat[0].shape[1], -flat[1].shape[1]), dim=1)[:2]
        if rope.position_axes is not None:
            (cos, sin), (sections, turns) = table[p].chunk(2, -1), count_sections(rope)
            return kernel(*flat, cos, sin, sections, head_dim, rope.rotary_dim, turns, is_neox)
        kernel(p, *flat, head_dim, table, is_neox)
        return flat

    return adapt(kernel, rope, rotate, "nhd", limit=LENGTH)


def sglang(kernel: Function, rope: RoPE, head_dim: int, *, slots: bool = False) -> Function:
    """Adapt ``apply_rope_inplace(q, k, cos_sin_cache, positions, *, is_neox, rope_dim)``.

    It writes to q and k, (tokens, heads, head_dim); the table is float32. With ``slots``, for
    ``assert_rotates(..., slots=True)``: ``apply_rope_inplace_with_kvcache(q, k, v, k_cache,
    v_cache, cos_sin_cache, positions, out_loc, *, is_neox, rope_dim)``, with caches (slots, heads *
    head_dim). Source: SGLang, jit_kernel/rope.py at 683b39b.
    """
    rope, tables = check(rope, head_dim), get_tables(rope, head_dim, "vllm")
    options = {"is_neox": rope.layout == "half", "rope_dim": rope.rotary_dim}

    def rotate(q: Array, k: Array, positions: Positions, *cache: Array) -> Any:
        p = to_integers(positions.ravel(), q, np.int64)
        (table,) = tables(q.float())
        if not slots:
            kernel(q, k, table, p, **options)
            return q, k
        k_cache, out_loc = (to_torch(x) for x in cache)
        caches = k_cache.flatten(1), k_cache.flatten(1).clone()
        kernel(q, k, k.clone(), *caches, table, p, out_loc, **options)
        return q, caches[0].view_as(k_cache)

    return adapt(kernel, rope, rotate, "nhd", limit=LENGTH)


def flashinfer(kernel: Function, rope: RoPE, head_dim: int, *, ragged: bool = False) -> Function:
    """Adapt ``apply_rope_pos_ids(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)``.

    q is (tokens, heads, head_dim); it returns q and k, or None if it writes to them. With
    ``ragged``, ``indptr, offsets`` take the place of ``pos_ids``. For Llama 3 ``low_freq_factor,
    high_freq_factor, old_context_len`` follow. ``apply_rope_with_cos_sin_cache_inplace`` is that of
    :func:`vllm`. Source: FlashInfer, flashinfer/rope.py at 0151f64.
    """
    rope, scaling = check(rope, head_dim, factor=False), rope.scaling
    if not (scaling is None or isinstance(scaling, (Linear, Llama3))):
        raise RopeError(f"scaling must be None, Linear or Llama3 there; got {scaling!r}")
    scale = 1.0 if scaling is None else scaling.factor
    options: tuple[Any, ...] = (rope.rotary_dim, rope.layout == "interleaved", scale, rope.base)
    if isinstance(scaling, Llama3):
        trained = scaling.original_max_position_embeddings
        options += (scaling.low_freq_factor, scaling.high_freq_factor, trained)

    def rotate(q: Array, k: Array, p: Any) -> Any:
        where = find_runs(p, q) if ragged else (to_integers(p.ravel(), q),)
        return kernel(q, k, *where, *options) or (q, k)

    return adapt(kernel, rope, rotate, "nhd")


def flash_attn(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved)``.

    x is (batch, tokens, heads, head_dim), packed (total, heads, head_dim); cos (rows, r/2), of the
    dtype of x; offsets (sequences,). Source: flash-attention, ops/triton/rotary.py at 03f6a6b.
    """
    rope, tables = check(rope, head_dim), get_tables(rope, head_dim, "onnx")
    interleaved = rope.layout == "interleaved"

    def rotate(x: Array, starts: Array, **packed: Array) -> Array:
        options = {"seqlen_offsets": starts, "interleaved": interleaved, **packed}
        if packed:
            options["max_seqlen"] = int(packed["cu_seqlens"].diff().max())
        return kernel(x, *tables(x), **options)

    return _adapt_sequences(kernel, rope, rotate)


def fla(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``rotary_embedding(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens)``.

    x is (batch, tokens, heads, head_dim), packed (1, total, heads, head_dim); cos (rows, r/2), of
    the dtype of x. Source: flash-linear-attention, modules/rotary.py at 4057f93.
    """
    rope, tables = check(rope, head_dim), get_tables(rope, head_dim, "onnx")
    interleaved = rope.layout == "interleaved"

    def rotate(x: Array, starts: Array, **packed: Array) -> Array:
        options = {"seqlen_offsets": starts, "interleaved": interleaved, **packed}
        y = kernel(x[None] if packed else x, *tables(x), **options)
        return y[0] if packed else y

    return _adapt_sequences(kernel, rope, rotate)


def transformer_engine(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``apply_rotary_pos_emb(t, freqs, tensor_format, start_positions, interleaved)``.

    t is "bshd", packed "thd" with ``cu_seqlens``; freqs (rows, 1, 1, r), angles in float32. Source:
    TransformerEngine, pytorch/attention/rope.py at 0dc141c.
    """
    rope = check(rope, head_dim, factor=False)
    tables = get_tables(rope, head_dim, "megatron")
    interleaved = rope.layout == "interleaved"

    def rotate(x: Array, starts: Array, **packed: Array) -> Array:
        options = {"start_positions": starts, "interleaved": interleaved, **packed}
        options["tensor_format"] = "thd" if packed else "bshd"
        return kernel(x, *tables(x.float()), **options)

    return _adapt_sequences(kernel, rope, rotate)


def _adapt_sequences(kernel: Function, rope: RoPE, rotate: Function) -> Function:
    """Return a function around rotate(x, starts), and with cu_seqlens where x is packed."""

    def of_pair(q: Array, k: Array, p: Positions) -> Any:
        bounds, starts = find_runs(p, q)
        if len(starts) == len(p):
            return rotate(q, starts), rotate(k, starts)
        packed = (rotate(x.flatten(0, 1), starts, cu_seqlens=bounds) for x in (q, k))
        return [y.reshape(x.shape) for x, y in zip((q, k), packed, strict=True)]

    return adapt(kernel, rope, of_pair, limit=LENGTH)
