"""Modules and functions of torch."""

from typing import Any

import torch
from measure import HEAD_DIM, LENGTH, TABLES, USUAL, Rotation, engine
from shared import both, describe, flatten, get_factor, get_starts, load_alone

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, LongRoPE, YaRN
from rope_xp.testing import conventions


def cast(module: Any, dtype: str) -> Any:
    return module if dtype == "float32" else module.to(getattr(torch, dtype))


@engine("transformers", "LlamaRotaryEmbedding, apply_rotary_pos_emb", "linear", "YaRN", "Llama 3",
        "LongRoPE", "module in bfloat16")  # fmt: skip
def transformers(rope: RoPE, dtype: str) -> Rotation:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    parameters = {**describe(rope), "rope_theta": rope.base}
    config = LlamaConfig(head_dim=HEAD_DIM, hidden_size=256, num_attention_heads=4,
                         max_position_embeddings=LENGTH, rope_parameters=parameters)  # fmt: skip
    module = cast(llama.LlamaRotaryEmbedding(config), dtype)
    if isinstance(rope.scaling, LongRoPE):  # a long call, whose frequencies stay for a short one
        module(torch.zeros(1), torch.tensor([[LENGTH - 1]]))
        module.rope_type = "fixed"
    return lambda q, k, p: llama.apply_rotary_pos_emb(q, k, *module(q, torch.as_tensor(p)))


@engine("diffusers", "get_1d_rotary_pos_embed, apply_rotary_emb", "linear", layout="interleaved",
        columns=tuple(c for c in USUAL if c != "batched decode"))  # fmt: skip
def diffusers(rope: RoPE, dtype: str) -> Rotation:
    from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed

    options = {"use_real": True, "linear_factor": get_factor(rope)}
    return both(lambda x, p: apply_rotary_emb(
        x, get_1d_rotary_pos_embed(HEAD_DIM, p[0], rope.base, **options)))  # fmt: skip


@engine("torchtune", "RotaryPositionalEmbeddings, Llama3ScaledRoPE", "Llama 3",
        "module in bfloat16", layout="interleaved", note="files alone")  # fmt: skip
def torchtune(rope: RoPE, dtype: str) -> Rotation:
    plain = load_alone("torchtune.modules.position_embeddings")
    scaled = load_alone("torchtune.models.llama3_1._position_embeddings")
    kind = scaled.Llama3ScaledRoPE if rope.scaling else plain.RotaryPositionalEmbeddings
    module = cast(kind(HEAD_DIM, LENGTH, rope.base), dtype)
    return both(lambda x, p: module(x, input_pos=torch.as_tensor(p)), "bshd")


class _Configurable(torch.nn.Module):
    """What torchtitan's RoPE takes from its base class: nothing but a name."""

    class Config:
        """The base of its configurations."""


_TITAN = {"note": "file alone; the factor of YaRN is in its softmax"}


@engine("torchtitan", "CosSinRoPE", "YaRN", "module in bfloat16", **_TITAN)
@engine("torchtitan", "ComplexRoPE", "Llama 3", "YaRN", layout="interleaved", **_TITAN)
def torchtitan(rope: RoPE, dtype: str) -> Rotation:
    same = lambda **options: lambda function: function  # noqa: E731  # a stub
    spmd = {"no_typecheck": same, "local_map": same, "S": str, "R": "R"}
    file = load_alone("torchtitan.models.common.rope", spmd_types=spmd,
                      torchtitan__protocols__module={"Module": _Configurable})  # fmt: skip
    options = {Llama3: {"scaling": "llama"}, YaRN: {"scaling": "yarn", "rope_factor": 4.0}}
    kind = file.ComplexRoPE if rope.layout == "interleaved" else file.CosSinRoPE
    config = kind.Config(dim=HEAD_DIM, max_seq_len=LENGTH, theta=rope.base,
                         **options.get(type(rope.scaling), {}))  # fmt: skip
    module = cast(kind(config), dtype)

    def rotate(q: Any, k: Any, p: Any) -> Any:
        results = module(q.swapaxes(1, 2), k.swapaxes(1, 2), torch.as_tensor(p))
        return [y.swapaxes(1, 2) * rope.attention_factor for y in results]

    return rotate


@engine("litgpt", "build_rope_cache, apply_rope", "linear", "Llama 3", "YaRN", "partial")
def litgpt(rope: RoPE, dtype: str) -> Rotation:
    from litgpt.model import apply_rope, build_rope_cache

    extra = {
        Llama3: {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_seq_len": 8192},
        YaRN: {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
               "original_max_seq_len": 4096},
    }.get(type(rope.scaling))  # fmt: skip
    ratio, n = 4 if isinstance(rope.scaling, Linear) else 1, rope.rotary_dim
    tables = build_rope_cache(LENGTH, n, base=int(rope.base), condense_ratio=ratio,
                              extra_config=extra)  # fmt: skip

    def rotate(x: Any, p: Any) -> Any:
        cos, sin = (table[torch.as_tensor(p)] for table in tables)
        # As its attention does for a part of the head.
        return torch.cat([apply_rope(x[..., :n], cos, sin), x[..., n:]], -1)

    return both(rotate)


@engine("x-transformers", "RotaryEmbedding, apply_rotary_pos_emb", "linear", "partial",
        "module in bfloat16", layout="interleaved")  # fmt: skip
def x_transformers(rope: RoPE, dtype: str) -> Rotation:
    from x_transformers import x_transformers as library

    options = {"base": rope.base, "interpolation_factor": get_factor(rope)}
    module = cast(library.RotaryEmbedding(rope.rotary_dim, **options), dtype)
    return both(lambda x, p: library.apply_rotary_pos_emb(x, *module(torch.as_tensor(p))))


@engine("rotary-embedding-torch", "RotaryEmbedding.rotate_queries_or_keys", "linear", "partial",
        "module in bfloat16", layout="interleaved",
        columns=("layout", "position", "bfloat16", "second base"))  # fmt: skip
def rotary_embedding_torch(rope: RoPE, dtype: str) -> Rotation:
    from rotary_embedding_torch import RotaryEmbedding

    options = {"theta": rope.base, "interpolate_factor": get_factor(rope)}
    module = cast(RotaryEmbedding(rope.rotary_dim, cache_if_possible=False, **options), dtype)
    return both(lambda x, p: module.rotate_queries_or_keys(x, offset=int(get_starts(p)[0])))


@engine("mistral-inference", "precompute_freqs_cis, apply_rotary_emb", layout="interleaved",
        note="file alone")  # fmt: skip
def mistral_inference(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("mistral_inference.rope")
    table = file.precompute_freqs_cis(HEAD_DIM, LENGTH, rope.base)
    return flatten(lambda q, k, p: file.apply_rotary_emb(q, k, table[p]))


@engine("megatron-core", "_apply_rotary_pos_emb_bshd", columns=(*TABLES, "bfloat16"))
def megatron_core(rope: RoPE, dtype: str) -> Rotation:
    from megatron.core.models.common.embeddings import rope_utils

    def kernel(t: Any, freqs: Any, *, mla_rotary_interleaved: bool, **options: Any) -> Any:
        options["multi_latent_attention"] = mla_rotary_interleaved  # its name until 0.16
        return rope_utils._apply_rotary_pos_emb_bshd(t, freqs, **options)

    return conventions.megatron(kernel, rope, HEAD_DIM)


@engine("torch", "torch.onnx.ops.rotary_embedding", columns=(*TABLES, "bfloat16"))
def torch_onnx(rope: RoPE, dtype: str) -> Rotation:
    tables = [torch.as_tensor(t) for t in rope.table(1024, HEAD_DIM, form="onnx", dtype="float32")]
    options = {"interleaved": rope.layout == "interleaved"}
    options |= {"rotary_embedding_dim": rope.rotary_dim} if rope.rotary_dim != HEAD_DIM else {}

    def rotate(x: Any, p: Any) -> Any:
        used = (t.to(x.dtype) for t in tables)
        return torch.onnx.ops.rotary_embedding(x, *used, torch.as_tensor(p), **options)

    return both(rotate)
