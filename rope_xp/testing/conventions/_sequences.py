"""Engines whose positions are those of sequences: an offset, and a length in ``cu_seqlens``.

Consecutive positions are a sequence. If each batch entry is one, the kernel gets the batch;
otherwise all sequences packed.
"""

from functools import wraps
from typing import Any

from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._box import Function
from rope_xp.testing.conventions._adapt import (
    LENGTH,
    Positions,
    adapt,
    check,
    find_runs,
    get_tables,
)


def flash_attn(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved)``.

    x is (batch, tokens, heads, head_dim), packed (total, heads, head_dim); cos (rows, r/2), of the
    dtype of x; offsets (sequences,). Source: flash-attention, ops/triton/rotary.py at 03f6a6b.
    """
    rope, tables = check(rope, head_dim), get_tables(rope, head_dim, "onnx")

    def rotate(x: Array, starts: Array, bounds: Array | None) -> Array:
        options = {"interleaved": rope.layout == "interleaved", "seqlen_offsets": starts}
        if bounds is not None:
            options |= {"cu_seqlens": bounds, "max_seqlen": int(bounds.diff().max())}
        return kernel(x, *tables(x), **options)

    return _adapt_sequences(kernel, rope, rotate)


def fla(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``rotary_embedding(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens)``.

    x is (batch, tokens, heads, head_dim), packed (1, total, heads, head_dim); cos (rows, r/2), of
    the dtype of x. Source: flash-linear-attention, modules/rotary.py at 4057f93.
    """

    @wraps(kernel)
    def rotate(x: Array, *tables: Array, max_seqlen: int | None = None, **options: Any) -> Array:
        if max_seqlen is None:
            return kernel(x, *tables, **options)
        return kernel(x[None], *tables, **options)[0]

    return flash_attn(rotate, rope, head_dim)


def transformer_engine(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``apply_rotary_pos_emb(t, freqs, tensor_format, start_positions, interleaved)``.

    t is "bshd", packed "thd" with ``cu_seqlens``; freqs (rows, 1, 1, r), angles in float32. Source:
    TransformerEngine, pytorch/attention/rope.py at 0dc141c.
    """
    rope = check(rope, head_dim, factor=False)
    tables = get_tables(rope, head_dim, "megatron")

    def rotate(x: Array, starts: Array, bounds: Array | None) -> Array:
        options = {"interleaved": rope.layout == "interleaved", "start_positions": starts}
        options["tensor_format"] = "bshd" if bounds is None else "thd"
        if bounds is not None:
            options["cu_seqlens"] = bounds
        return kernel(x, *tables(x.float()), **options)

    return _adapt_sequences(kernel, rope, rotate)


def _adapt_sequences(kernel: Function, rope: RoPE, rotate: Function) -> Function:
    """Return a function around rotate(x, starts, bounds); bounds is None for a batch."""

    def of_pair(q: Array, k: Array, p: Positions) -> Any:
        bounds, starts = find_runs(p, q)
        if len(starts) == len(p):
            return rotate(q, starts, None), rotate(k, starts, None)
        packed = (rotate(x.flatten(0, 1), starts, bounds) for x in (q, k))
        return [y.reshape(x.shape) for x, y in zip((q, k), packed, strict=True)]

    return adapt(kernel, rope, of_pair, limit=LENGTH)
