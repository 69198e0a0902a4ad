"""Kernels with the signatures of engines, by the formula of RoFormer (arXiv 2104.09864, eq. 34).

Written apart from rope_xp, in plain torch and numpy. ``turn`` is a parameter: a fault is another.
"""

import functools

import numpy as np
import torch


def turn(x, cos, sin, neox):
    """Rotate the first components of heads (..., heads, d) by cos and sin (..., r/2)."""
    y, n = (x.clone() if isinstance(x, torch.Tensor) else x.copy()), cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    first, second = (
        (slice(n), slice(n, 2 * n)) if neox else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    )
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def make(turn=turn, rms=None):
    """Return the kernels of a rotation and of a norm."""

    def look_up(cos_sin, positions):
        rows = cos_sin[positions]
        return rows[..., : rows.shape[-1] // 2], rows[..., rows.shape[-1] // 2 :]

    def vllm(positions, query, key, head_size, cos_sin_cache, is_neox):
        for x in (query, key):
            heads = x.view(len(x), -1, head_size)
            heads[...] = turn(heads, *look_up(cos_sin_cache, positions), is_neox)

    def vllm_norm(qkv, hq, hk, hv, d, eps, q_weight, k_weight, cos_sin_cache, is_neox, positions):
        heads, tables = qkv.view(len(qkv), -1, d), look_up(cos_sin_cache, positions)
        for part, weight in ((slice(hq), q_weight), (slice(hq, hq + hk), k_weight)):
            x = heads[:, part].double()
            normed = (rms or norm)(x, weight, eps, lambda y: turn(y, *tables, is_neox))
            heads[:, part] = normed.to(qkv.dtype)

    def vllm_mrope(q, k, cos, sin, sections, head_size, rotary_dim, turns, is_neox, lanes=None):
        lane = np.repeat(np.arange(3), sections)
        if turns:  # THWTHW...TT
            lane = np.arange(rotary_dim // 2) % 3
            lane[lane * 0 + np.arange(len(lane)) // 3 >= np.array(sections)[lane]] = 0
        lane, pairs = (lanes or (lambda lane: lane))(lane), np.arange(rotary_dim // 2)
        cos, sin = (t[lane, :, pairs].T for t in (cos, sin))
        views = (x.view(len(x), -1, head_size) for x in (q, k))
        return tuple(turn(x, cos, sin, is_neox).flatten(1) for x in views)

    def sglang(q, k, cos_sin_cache, positions, *, is_neox, rope_dim):
        for x in (q, k):
            x[...] = turn(x, *look_up(cos_sin_cache, positions), is_neox)

    def sglang_slots(
        q, k, v, k_cache, v_cache, cos_sin_cache, positions, out_loc, *, is_neox, rope_dim
    ):
        sglang(q, k, cos_sin_cache, positions, is_neox=is_neox, rope_dim=rope_dim)
        k_cache[out_loc], v_cache[out_loc] = k.flatten(1), v.flatten(1)

    def flashinfer(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta):
        w = rope_theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim) / rope_scale
        angles = pos_ids[:, None] * w
        tables = angles.cos().float(), angles.sin().float()
        return tuple(turn(x, *tables, not interleave) for x in (q, k))

    def flashinfer_ragged(q, k, indptr, offsets, *options):
        return flashinfer(q, k, sequence_positions(indptr, offsets), *options)

    def flash_attn(
        x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False
    ):
        if cu_seqlens is None:
            p = seqlen_offsets[:, None] + torch.arange(x.shape[1])
        else:
            p = sequence_positions(cu_seqlens, seqlen_offsets)
        return turn(x, *look_up(torch.cat([cos, sin], -1), p.long()), not interleaved)

    def fla(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None):
        x = x if cu_seqlens is None else x[0]
        y = flash_attn(x, cos, sin, seqlen_offsets, cu_seqlens, None, interleaved)
        return y if cu_seqlens is None else y[None]

    def transformer_engine(t, freqs, tensor_format, start_positions, interleaved, cu_seqlens=None):
        assert (tensor_format == "thd") == (cu_seqlens is not None)
        p = start_positions[:, None] + torch.arange(t.shape[1])
        if cu_seqlens is not None:
            p = sequence_positions(cu_seqlens, start_positions)
        angles = freqs[p.long(), 0, 0]
        angles = angles[..., ::2] if interleaved else angles[..., : angles.shape[-1] // 2]
        return turn(t, angles.cos(), angles.sin(), not interleaved)

    def huggingface(q, k, cos, sin, neox=True):
        columns = slice(cos.shape[-1] // 2) if neox else slice(None, None, 2)
        tables = [t[..., columns] for t in (cos, sin)]
        halves = (turn(x.swapaxes(1, 2), *tables, neox).swapaxes(1, 2) for x in (q, k))
        return tuple(halves)

    def liger_mrope(q, k, cos, sin, sections):
        lane, pairs = np.repeat(np.arange(3), sections), np.arange(sum(sections))
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
        tables = look_up(np.concatenate([cos_cache, sin_cache], -1), position_ids)
        return turn(x.swapaxes(1, 2), *tables, not interleaved).swapaxes(1, 2)

    def ggml(a, b, c, n_dims, *rest):
        sections, rest = (rest[0], rest[1:]) if isinstance(rest[0], list) else (None, rest)
        mode, _, base, scale, ext, attn, _, _ = rest
        w = base ** (-np.arange(0, n_dims, 2) / n_dims) * scale / (1.0 if c is None else c)
        lane = np.zeros(n_dims // 2, int)
        if sections:
            assert mode == 8
            b, lane = b.reshape(4, -1), np.repeat(np.arange(4), sections)
        angles = (b[lane].T if sections else b[:, None]) * w
        assert ext == 0.0
        cos, sin = (attn * t(angles).astype(np.float32) for t in (np.cos, np.sin))
        return turn(a, cos, sin, mode != 0)

    def mlx(x, dims, *, traditional, base, scale, offset, freqs):
        import mlx.core as mx

        w = base ** (-np.arange(0, dims, 2) / dims) if freqs is None else 1.0 / np.array(freqs)
        host, p = np.array(x), np.array(offset)[:, None] + np.arange(x.shape[2])
        angles = p[..., None] * scale * w
        tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return mx.array(turn(host.swapaxes(1, 2), *tables, not traditional).swapaxes(1, 2))

    return {name: f for name, f in locals().items() if callable(f)} | {"turn": turn}


def sequence_positions(bounds, offsets):
    """Return the position of each token of packed sequences."""
    lengths = bounds.diff()
    starts = torch.repeat_interleave(offsets - bounds[:-1], lengths)
    return starts + torch.arange(int(bounds[-1]))


def norm(x, weight, eps, rotate):
    """Normalise by the root mean square (arXiv 1910.07467, eq. 4), and rotate."""
    return rotate(x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight)


RIGHT = make()
interleaved = functools.partial(RIGHT["huggingface"], neox=False)
