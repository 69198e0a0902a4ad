"""Modules and functions of torch."""

from typing import Any

import torch
from measure import HEAD_DIM, LENGTH, Engine, Rotation
from shared import both, check, count_from_zero, describe, get_start, load_alone, share

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, LongRoPE, YaRN
from rope_xp.testing import conventions


def cast(module: Any, dtype: str) -> Any:
    return module if dtype == "float32" else module.to(getattr(torch, dtype))


def transformers(rope: RoPE, dtype: str) -> Rotation:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    check(rope, Linear, YaRN, Llama3, LongRoPE)
    parameters = {**describe(rope), "rope_theta": rope.base}
    config = LlamaConfig(head_dim=HEAD_DIM, hidden_size=256, num_attention_heads=4,
                         max_position_embeddings=LENGTH, rope_parameters=parameters)  # fmt: skip
    module = cast(llama.LlamaRotaryEmbedding(config), dtype)
    if isinstance(rope.scaling, LongRoPE):  # a long call, whose frequencies stay for a short one
        module(torch.zeros(1), torch.tensor([[LENGTH - 1]]))
        module.rope_type = "fixed"

    def rotate(q: Any, k: Any, p: Any) -> Any:
        cos, sin = module(q, torch.as_tensor(p))
        return llama.apply_rotary_pos_emb(q, k, cos, sin)

    return rotate


def diffusers(rope: RoPE, dtype: str) -> Rotation:
    from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed

    check(rope, Linear)
    factor = rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0

    def rotate(x: Any, p: Any) -> Any:
        tables = get_1d_rotary_pos_embed(
            HEAD_DIM, share(p), rope.base, use_real=True, linear_factor=factor
        )
        return apply_rotary_emb(x, tables)

    return both(rotate)


def torchtune(rope: RoPE, dtype: str) -> Rotation:
    plain = load_alone("torchtune.modules.position_embeddings")
    scaled = load_alone("torchtune.models.llama3_1._position_embeddings")
    check(rope, Llama3)
    make = scaled.Llama3ScaledRoPE if rope.scaling else plain.RotaryPositionalEmbeddings
    module = cast(make(HEAD_DIM, LENGTH, rope.base), dtype)
    return both(lambda x, p: module(x, input_pos=torch.as_tensor(p)), "bshd")


def torchtitan(rope: RoPE, dtype: str) -> Rotation:
    same = lambda **options: lambda function: function  # noqa: E731  # a stub
    spmd = {"no_typecheck": same, "local_map": same, "S": str, "R": "R"}
    file = load_alone("torchtitan.models.common.rope", spmd_types=spmd,
                      torchtitan__protocols__module={"Module": _Configurable})  # fmt: skip
    check(rope, Llama3, YaRN)
    options = {Llama3: {"scaling": "llama"}, YaRN: {"scaling": "yarn", "rope_factor": 4.0}}
    kind = file.ComplexRoPE if rope.layout == "interleaved" else file.CosSinRoPE
    config = kind.Config(dim=HEAD_DIM, max_seq_len=LENGTH, theta=rope.base,
                         **options.get(type(rope.scaling), {}))  # fmt: skip
    module = cast(kind(config), dtype)

    def rotate(q: Any, k: Any, p: Any) -> Any:
        results = module(q.swapaxes(1, 2), k.swapaxes(1, 2), torch.as_tensor(p))
        return [y.swapaxes(1, 2) for y in results]

    return _unless_mscale(rotate, rope)


class _Configurable(torch.nn.Module):
    """What torchtitan's RoPE takes from its base class: nothing but a name."""

    class Config:
        """The base of its configurations."""


def _unless_mscale(rotate: Rotation, rope: RoPE) -> Rotation:
    """Return q and k times the factor of YaRN, which an engine applies to the softmax instead."""

    def scaled(q: Any, k: Any, p: Any) -> Any:
        return [y * rope.attention_factor for y in rotate(q, k, p)]

    return rotate if rope.attention_factor == 1.0 else scaled


def litgpt(rope: RoPE, dtype: str) -> Rotation:
    from litgpt.model import apply_rope, build_rope_cache

    check(rope, Linear, Llama3, YaRN, partial=True)
    extra: dict[str, Any] | None = None
    if isinstance(rope.scaling, Llama3):
        extra = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if isinstance(rope.scaling, YaRN):
        extra = {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}
    if extra is not None:
        extra["original_max_seq_len"] = 8192 if isinstance(rope.scaling, Llama3) else 4096
    ratio = 4 if isinstance(rope.scaling, Linear) else 1
    n = rope.rotary_dim or HEAD_DIM
    tables = build_rope_cache(LENGTH, n, base=int(rope.base), condense_ratio=ratio,
                              extra_config=extra)  # fmt: skip

    def rotate(x: Any, p: Any) -> Any:
        cos, sin = (table[torch.as_tensor(p)] for table in tables)
        # As its attention does for a part of the head.
        return torch.cat([apply_rope(x[..., :n], cos, sin), x[..., n:]], -1)

    return both(rotate)


def x_transformers(rope: RoPE, dtype: str) -> Rotation:
    from x_transformers import x_transformers as library

    check(rope, Linear, partial=True)
    factor = rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0
    module = cast(library.RotaryEmbedding(rope.rotary_dim or HEAD_DIM, base=rope.base,
                                          interpolation_factor=factor), dtype)  # fmt: skip

    def rotate(x: Any, p: Any) -> Any:
        freqs, scale = module(torch.as_tensor(p))
        return library.apply_rotary_pos_emb(x, freqs, scale)

    return both(rotate)


def rotary_embedding_torch(rope: RoPE, dtype: str) -> Rotation:
    from rotary_embedding_torch import RotaryEmbedding

    check(rope, Linear, partial=True)
    factor = rope.scaling.factor if isinstance(rope.scaling, Linear) else 1.0
    module = cast(RotaryEmbedding(rope.rotary_dim or HEAD_DIM, theta=rope.base,
                                  interpolate_factor=factor, cache_if_possible=False),
                  dtype)  # fmt: skip
    return both(lambda x, p: module.rotate_queries_or_keys(x, offset=get_start(p)))


def torchembed(rope: RoPE, dtype: str) -> Rotation:
    from torchembed import RotaryEmbedding

    check(rope)
    module = cast(RotaryEmbedding(HEAD_DIM, base=rope.base), dtype)

    def rotate(q: Any, k: Any, p: Any) -> Any:
        count_from_zero(p)
        return module(q, k)

    return rotate


def timm(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("timm.layers.pos_embed_sincos")
    check(rope)

    def rotate(x: Any, p: Any) -> Any:
        cos, sin = (x.new_tensor(t) for t in rope.cos_sin(share(p), HEAD_DIM))
        return file.apply_rot_embed_cat(x, torch.cat([sin, sin, cos, cos], -1), half=True)

    return both(rotate)


def curated_transformers(rope: RoPE, dtype: str) -> Rotation:
    # The package's other modules need an older transformers.
    library = load_alone("curated_transformers.layers.embeddings")
    check(rope)
    module = cast(library.RotaryEmbeddings(HEAD_DIM, base=rope.base), dtype)
    return both(lambda x, p: module(x, positions=torch.as_tensor(p)))


def mistral_inference(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("mistral_inference.rope")
    check(rope)
    table = file.precompute_freqs_cis(HEAD_DIM, LENGTH, rope.base)

    def rotate(q: Any, k: Any, p: Any) -> Any:
        flat = [x.swapaxes(1, 2).flatten(0, 1) for x in (q, k)]
        results = file.apply_rotary_emb(*flat, table[torch.as_tensor(p).flatten()])
        shape = len(q), q.shape[2], -1, HEAD_DIM
        return [y.reshape(shape).swapaxes(1, 2) for y in results]

    return rotate


def megatron_core(rope: RoPE, dtype: str) -> Rotation:
    from megatron.core.models.common.embeddings import rope_utils

    check(rope, partial=True)

    def kernel(t: Any, freqs: Any, *, mla_rotary_interleaved: bool, **options: Any) -> Any:
        options["multi_latent_attention"] = mla_rotary_interleaved  # its name until 0.16
        return rope_utils._apply_rotary_pos_emb_bshd(t, freqs, **options)

    return conventions.megatron(kernel, rope, HEAD_DIM)


def torch_onnx(rope: RoPE, dtype: str) -> Rotation:
    check(rope, partial=True)
    tables = [torch.as_tensor(t) for t in rope.table(1024, HEAD_DIM, form="onnx", dtype="float32")]
    options = {"interleaved": rope.layout == "interleaved"}
    options |= {"rotary_embedding_dim": rope.rotary_dim} if rope.rotary_dim else {}

    def rotate(x: Any, p: Any) -> Any:
        used = (t.to(x.dtype) for t in tables)
        return torch.onnx.ops.rotary_embedding(x, *used, torch.as_tensor(p), **options)

    return both(rotate)


_TITAN = "file alone; the factor of YaRN is in its softmax"
_UNSHOWN = {"module in bfloat16": "not tried in the whole package, which could not be imported"}
ENGINES = [
    Engine("transformers", "LlamaRotaryEmbedding, apply_rotary_pos_emb", transformers, is_module=True),
    Engine("diffusers", "get_1d_rotary_pos_embed, apply_rotary_emb", diffusers, "interleaved"),
    Engine("torchtune", "RotaryPositionalEmbeddings, Llama3ScaledRoPE", torchtune, "interleaved",
           is_module=True, note="files alone"),
    Engine("torchtitan", "ComplexRoPE", torchtitan, "interleaved",
           is_module=True, note=_TITAN, not_run=_UNSHOWN),
    Engine("torchtitan", "CosSinRoPE", torchtitan, is_module=True, note=_TITAN),
    Engine("litgpt", "build_rope_cache, apply_rope", litgpt),
    Engine("x-transformers", "RotaryEmbedding, apply_rotary_pos_emb", x_transformers, "interleaved",
           is_module=True),
    Engine("rotary-embedding-torch", "RotaryEmbedding.rotate_queries_or_keys",
           rotary_embedding_torch, "interleaved", is_module=True),
    Engine("torchembed", "RotaryEmbedding", torchembed, is_module=True),
    Engine("timm", "apply_rot_embed_cat", timm, takes_tables=True, note="file alone",
           not_run={"batched decode": "a table for each batch entry was not tried"}),
    Engine("curated-transformers", "RotaryEmbeddings", curated_transformers, is_module=True,
           note="file alone", not_run=_UNSHOWN),
    Engine("mistral-inference", "precompute_freqs_cis, apply_rotary_emb", mistral_inference,
           "interleaved", note="file alone"),
    Engine("megatron-core", "_apply_rotary_pos_emb_bshd", megatron_core, takes_tables=True),
    Engine("torch", "torch.onnx.ops.rotary_embedding", torch_onnx, takes_tables=True),
]  # fmt: skip
