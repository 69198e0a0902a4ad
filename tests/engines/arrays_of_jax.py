"""Modules and functions of jax, keras and mlx."""

from typing import Any

import numpy as np
from measure import HEAD_DIM, LENGTH, USUAL, Rotation, engine
from shared import both, describe, get_factor, get_starts, load_alone

from rope_xp import RoPE
from rope_xp.scaling import YaRN


@engine("equinox", "nn.RotaryPositionalEmbedding", library="jax", from_zero=True,
        columns=("layout", "position", "bfloat16", "second base"))  # fmt: skip
def equinox(rope: RoPE, dtype: str) -> Rotation:
    import jax
    from equinox.nn import RotaryPositionalEmbedding

    module = RotaryPositionalEmbedding(HEAD_DIM, theta=rope.base)
    module(np.zeros((1, HEAD_DIM), np.float32))
    every = jax.vmap(jax.vmap(module))
    return both(lambda x, p: every(x))


@engine("gemma", "gm.math.apply_rope", "linear", library="jax", note="file alone")
def gemma(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("gemma.gm.math._positional_embeddings")
    options = {"base_frequency": rope.base, "scale_factor": get_factor(rope)}
    return both(lambda x, p: file.apply_rope(x, p, **options), "bshd")


@engine("maxtext", "m3.core.rope.apply_rope", library="jax", note="file alone")
def maxtext(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("maxtext.m3.core.rope")
    return both(lambda x, p: file.apply_rope(x, p, max_timescale=rope.base), "bshd")


@engine("keras-hub", "layers.RotaryEmbedding", "linear", "YaRN", "module in bfloat16",
        note="on torch")  # fmt: skip
def keras_hub(rope: RoPE, dtype: str) -> Rotation:
    from keras_hub.layers import RotaryEmbedding

    kind = "yarn" if isinstance(rope.scaling, YaRN) else "linear"
    module = RotaryEmbedding(max_wavelength=rope.base, rope_type=kind, dtype=dtype,
                             scaling_factor=get_factor(rope))  # fmt: skip
    return both(lambda x, p: module(x, positions=p), "bshd")


_OFFSET = {"library": "mlx", "columns": tuple(c for c in USUAL if c != "packed")}


def _offset(module: Any) -> Rotation:
    import mlx.core as mx

    return both(lambda x, p: module(x, offset=mx.array(get_starts(p).astype(np.int32))))


@engine("mlx", "nn.RoPE", "linear", "partial", **_OFFSET)
def mlx(rope: RoPE, dtype: str) -> Rotation:
    from mlx import nn

    options = {"base": rope.base, "scale": 1.0 / get_factor(rope)}
    return _offset(nn.RoPE(rope.rotary_dim, traditional=rope.layout == "interleaved", **options))


@engine("mlx-lm", "initialize_rope", "linear", "YaRN", "Llama 3", "LongRoPE", "partial",
        note="file alone", **_OFFSET)  # fmt: skip
def mlx_lm(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("mlx_lm.models.rope_utils")
    traditional = rope.layout == "interleaved"
    options = rope.rotary_dim, rope.base, traditional, describe(rope), LENGTH
    return _offset(file.initialize_rope(*options))
