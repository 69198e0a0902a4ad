"""Kernels with the signatures of engines, by the formula of RoFormer (arXiv 2104.09864, eq. 34).

Written apart from rope_xp, in plain torch and numpy. A fault is another ``turn``, ``rms`` or
``lanes``; ``watch`` gets the positions whose rows of a table are read.
"""

import numpy as np
import torch


def turn(x, cos, sin, neox):
    """Rotate the first components of heads (..., heads, d) by cos and sin (..., r/2)."""
    y, n = (x.clone() if isinstance(x, torch.Tensor) else x.copy()), cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    start, step = (n, 1) if neox else (1, 2)
    first, second = np.s_[..., : n * step : step], np.s_[..., start : start + n * step : step]
    y[first] = x[first] * cos - x[second] * sin
    y[second] = x[second] * cos + x[first] * sin
    return y


def norm(x, weight, eps):
    """Normalise by the root mean square (arXiv 1910.07467, eq. 4)."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def norm_first(x, weight, eps, rotate):
    return rotate(norm(x, weight, eps))


def sequence_positions(bounds, offsets):
    """Return the position of each token of packed sequences."""
    starts = torch.repeat_interleave(offsets - bounds[:-1], bounds.diff())
    return starts + torch.arange(int(bounds[-1]))


def spread(sections, turns=False):
    """Return the component of a position that each pair reads: in blocks, or THWTHW...TT."""
    lane = np.repeat(np.arange(len(sections)), sections)
    if turns:
        lane = np.arange(len(lane)) % 3
        lane[np.arange(len(lane)) // 3 >= np.array(sections)[lane]] = 0
    return lane


def make(turn=turn, rms=norm_first, lanes=spread, watch=id):
    """Return the kernels of a rotation, a norm and M-RoPE."""

    def look_up(x, cos, sin, positions, neox):
        watch(positions)
        rows = cos[positions]
        if sin is not None:
            return turn(x, rows, sin[positions], neox)
        angles = rows[..., : rows.shape[-1] // 2] if neox else rows[..., ::2]  # each is there twice
        return turn(x, angles.cos(), angles.sin(), neox)

    def vllm(positions, query, key, head_size, cos_sin_cache, is_neox):
        for x in (query, key):
            heads = x.view(len(x), -1, head_size)
            heads[...] = look_up(heads, *cos_sin_cache.chunk(2, -1), positions, is_neox)

    def vllm_norm(qkv, hq, hk, hv, d, eps, q_weight, k_weight, cos_sin_cache, is_neox, positions):
        heads, tables = qkv.view(len(qkv), -1, d), cos_sin_cache.chunk(2, -1)
        for part, weight in ((slice(hq), q_weight), (slice(hq, hq + hk), k_weight)):
            x = heads[:, part].double()
            heads[:, part] = rms(x, weight, eps, lambda y: look_up(y, *tables, positions, is_neox))

    def vllm_mrope(q, k, cos, sin, sections, head_size, rotary_dim, turns, is_neox):
        lane, pairs = lanes(sections, turns), np.arange(rotary_dim // 2)
        tables = [t[lane, :, pairs].T for t in (cos, sin)]
        views = (x.view(len(x), -1, head_size) for x in (q, k))
        return tuple(turn(x, *tables, is_neox).flatten(1) for x in views)

    def sglang(q, k, cos_sin_cache, positions, *, is_neox, rope_dim):
        vllm(positions, q.flatten(1), k.flatten(1), q.shape[-1], cos_sin_cache, is_neox)

    def sglang_slots(q, k, v, k_cache, v_cache, cos_sin_cache, positions, out_loc, **options):
        sglang(q, k, cos_sin_cache, positions, **options)
        k_cache[out_loc], v_cache[out_loc] = k.flatten(1), v.flatten(1)

    def flashinfer(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta):
        w = rope_theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim) / rope_scale
        angles = pos_ids[:, None] * w
        tables = angles.cos().float(), angles.sin().float()
        return tuple(turn(x, *tables, not interleave) for x in (q, k))

    def flashinfer_ragged(q, k, indptr, offsets, *options):
        return flashinfer(q, k, sequence_positions(indptr, offsets), *options)

    def count(x, starts, bounds):
        if bounds is not None:
            return sequence_positions(bounds, starts).long()
        return (starts[:, None] + torch.arange(x.shape[1])).long()

    def flash_attn(x, cos, sin, *, seqlen_offsets, interleaved, cu_seqlens=None, max_seqlen=None):
        return look_up(x, cos, sin, count(x, seqlen_offsets, cu_seqlens), not interleaved)

    def fla(x, cos, sin, *, cu_seqlens=None, **options):
        if cu_seqlens is None:
            return flash_attn(x, cos, sin, **options)
        return flash_attn(x[0], cos, sin, cu_seqlens=cu_seqlens, **options)[None]

    def transformer_engine(t, freqs, tensor_format, start_positions, interleaved, cu_seqlens=None):
        assert (tensor_format == "thd") == (cu_seqlens is not None)
        positions = count(t, start_positions, cu_seqlens)
        return look_up(t, freqs.flatten(1), None, positions, not interleaved)

    def huggingface(q, k, cos, sin, neox=True):
        columns = slice(cos.shape[-1] // 2) if neox else slice(None, None, 2)
        tables = [t[..., columns] for t in (cos, sin)]
        return tuple(turn(x.swapaxes(1, 2), *tables, neox).swapaxes(1, 2) for x in (q, k))

    def liger_mrope(q, k, cos, sin, sections):
        lane, pairs = lanes(sections), np.arange(sum(sections))
        rows = [t[lane, ..., pairs].movedim(0, -1) for t in (cos, sin)]
        return tuple(turn(x.swapaxes(1, 2), *rows, True).swapaxes(1, 2) for x in (q, k))

    def megatron(t, freqs, rotary_interleaved, mla_rotary_interleaved, mscale):
        angles, neox = freqs[:, :, 0], not rotary_interleaved
        angles = angles[..., : angles.shape[-1] // 2] if neox else angles[..., ::2]
        if mla_rotary_interleaved:
            t = torch.cat([t[..., ::2], t[..., 1::2]], -1)
        return turn(t, mscale * angles.cos(), mscale * angles.sin(), neox)

    def onnx(x, cos_cache, sin_cache, position_ids, interleaved, rotary_embedding_dim):
        assert rotary_embedding_dim in (0, 2 * cos_cache.shape[-1])
        rows = x.swapaxes(1, 2)
        return look_up(rows, cos_cache, sin_cache, position_ids, not interleaved).swapaxes(1, 2)

    def ggml(a, b, c, n_dims, *rest):
        sections, rest = (rest[0], rest[1:]) if isinstance(rest[0], list) else (None, rest)
        mode, _, base, scale, ext, attn, _, _ = rest
        assert (mode in {8, 40}, ext) == (bool(sections), 0.0)
        lane = lanes(sections, mode == 40) if sections else np.zeros(n_dims // 2, int)
        w = base ** (-np.arange(0, n_dims, 2) / n_dims) * scale / (1.0 if c is None else c)
        positions = b.reshape(4 if sections else 1, -1)[lane].T
        cos, sin = (attn * t(positions * w).astype(np.float32) for t in (np.cos, np.sin))
        return turn(a, cos, sin, mode != 0)

    def mlx(x, dims, *, traditional, base, scale, offset, freqs):
        import mlx.core as mx

        w = base ** (-np.arange(0, dims, 2) / dims) if freqs is None else 1.0 / np.array(freqs)
        host, p = np.array(x), np.array(offset)[:, None] + np.arange(x.shape[2])
        angles = p[..., None] * scale * w
        tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return mx.array(turn(host.swapaxes(1, 2), *tables, not traditional).swapaxes(1, 2))

    return {name: f for name, f in locals().items() if callable(f)}
