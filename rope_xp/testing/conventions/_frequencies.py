"""Libraries whose kernels compute angles from a base or from frequencies."""

from itertools import pairwise
from typing import Any

import numpy as np

from rope_xp._core.typing import Array
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.rope import RoPE
from rope_xp.scaling import Linear
from rope_xp.testing._box import Function
from rope_xp.testing.conventions._adapt import Positions, adapt, check, count_sections

_NORMAL, _NEOX, _MROPE, _IMROPE = 0, 2, 8, 40


def ggml(kernel: Function, rope: RoPE, head_dim: int) -> Function:
    """Adapt ``ggml_rope_ext(a, b, c, n_dims, mode, n_ctx_orig, freq_base, freq_scale, ...)``.

    Arrays are numpy's, their axes in the order of numpy: a (1, tokens, heads, head_dim), b int32
    (tokens,), c frequency factors (n_dims/2,) or None. ``ext_factor, attn_factor, beta_fast,
    beta_slow`` follow; ext_factor is 0. If the rope has components: ``ggml_rope_multi`` with b (4 *
    tokens,) and four sections after n_dims. Source: llama.cpp, ggml.h at 004eaba.
    """
    rope = check(rope, head_dim, components=True)
    is_linear, r = isinstance(rope.scaling, Linear), rope.rotary_dim or head_dim
    plain, mode = inverse_frequencies(rope.base, r), {"half": _NEOX}.get(rope.layout, _NORMAL)
    scale = rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0
    factors = None
    if rope.scaling is not None and not is_linear:
        factors = (plain / rope.frequencies(head_dim)).astype(np.float32)
    sections: tuple[Any, ...] = ()
    if rope.position_axes is not None:
        counts, turns = count_sections(rope)
        sections, mode = ([*counts, 0, 0][:4],), _IMROPE if turns else _MROPE
    last = (mode, 0, rope.base, 1.0 / scale, 0.0, rope.attention_factor, 32.0, 1.0)

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
    options: dict[str, Any] = {"traditional": rope.layout == "interleaved", "scale": 1.0}
    if rope.scaling is None or isinstance(rope.scaling, Linear):
        factor = rope.scaling.factor if rope.scaling else 1.0
        options |= {"base": rope.base, "scale": 1.0 / factor, "freqs": None}
    else:
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
