"""Modules and functions of jax, keras and mlx."""

from typing import Any

import numpy as np
from measure import HEAD_DIM, LENGTH, Engine, Rotation
from shared import both, check, count_from_zero, describe, get_starts, load_alone

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, LongRoPE, YaRN


def equinox(rope: RoPE, dtype: str) -> Rotation:
    import jax
    from equinox.nn import RotaryPositionalEmbedding

    check(rope)
    module = RotaryPositionalEmbedding(HEAD_DIM, theta=rope.base)
    module(np.zeros((1, HEAD_DIM), np.float32))
    every = jax.vmap(jax.vmap(module))

    def rotate(x: Any, p: Any) -> Any:
        count_from_zero(p)
        return every(x)

    return both(rotate)


def gemma(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("gemma.gm.math._positional_embeddings")
    check(rope, Linear)
    factor = rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0
    options = {"base_frequency": rope.base, "scale_factor": factor}
    return both(lambda x, p: file.apply_rope(x, p, **options), "bshd")


def maxtext(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("maxtext.m3.core.rope")
    check(rope)
    return both(lambda x, p: file.apply_rope(x, p, max_timescale=rope.base), "bshd")


def keras_hub(rope: RoPE, dtype: str) -> Rotation:
    from keras_hub.layers import RotaryEmbedding

    check(rope, Linear, YaRN)
    kind = "yarn" if isinstance(rope.scaling, YaRN) else "linear"
    factor = getattr(rope.scaling, "factor", 1.0)
    module = RotaryEmbedding(max_wavelength=rope.base, rope_type=kind, scaling_factor=factor,
                             dtype=dtype)  # fmt: skip
    return both(lambda x, p: module(x, positions=p), "bshd")


def mlx(rope: RoPE, dtype: str) -> Rotation:
    import mlx.core as mx
    from mlx import nn

    check(rope, Linear, partial=True)
    scale = 1.0 / rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0
    n, traditional = rope.rotary_dim or HEAD_DIM, rope.layout == "interleaved"
    module = nn.RoPE(n, traditional=traditional, base=rope.base, scale=scale)
    return both(lambda x, p: module(x, offset=mx.array(get_starts(p).astype(np.int32))))


def mlx_lm(rope: RoPE, dtype: str) -> Rotation:
    import mlx.core as mx

    file = load_alone("mlx_lm.models.rope_utils")
    check(rope, Linear, YaRN, Llama3, LongRoPE, partial=True)
    n, traditional = rope.rotary_dim or HEAD_DIM, rope.layout == "interleaved"
    module = file.initialize_rope(n, rope.base, traditional, describe(rope), LENGTH)
    return both(lambda x, p: module(x, offset=mx.array(get_starts(p).astype(np.int32))))


ENGINES = [
    Engine("equinox", "nn.RotaryPositionalEmbedding", equinox, library="jax"),
    Engine("gemma", "gm.math.apply_rope", gemma, library="jax", note="file alone",
           not_run={"partial": "its rope_proportion was not tried"}),
    Engine("maxtext", "m3.core.rope.apply_rope", maxtext, library="jax", note="file alone"),
    Engine("keras-hub", "layers.RotaryEmbedding", keras_hub, is_module=True, note="on torch"),
    Engine("mlx", "nn.RoPE", mlx, library="mlx"),
    Engine("mlx-lm", "initialize_rope", mlx_lm, library="mlx", note="file alone"),
]  # fmt: skip
