"""The names that the table of docs/start.md uses: each library's own, or its formula.

One namespace a library: what its users call, and the arrays that they have. Formulae are those of
engine_kernels.py behind the signature of a library that is too large to install, or needs a GPU.
"""

import numpy as np
import pytest
import torch

import rope_xp
from rope_xp import RoPE
from rope_xp.integrations import apply_rotary_transformers
from rope_xp.scaling import NTK, Linear

from .engine_kernels import turn

TOKENS = 5
OURS = {"rope_xp": rope_xp, "RoPE": RoPE, "Linear": Linear, "NTK": NTK, "torch": torch, "np": np}
OURS |= {"apply_rotary_transformers": apply_rotary_transformers}


def _name_arrays(axes="bshd", **names):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, TOKENS, heads, 64, generator=generator) for heads in (8, 2))
    if axes == "bhsd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return {"q": q, "k": k, "positions": 7 + torch.arange(TOKENS), **names}


def _tabulate(base=1e4, factor=1.0):
    angles = torch.arange(32)[:, None] * base ** (-torch.arange(32) / 32) / factor
    return angles.cos(), angles.sin()


def _torchtune(dim, base):
    cos, sin = _tabulate(base)
    return lambda x, *, input_pos: turn(x, cos[input_pos], sin[input_pos], neox=False)


def _flash_attn(x, cos, sin, interleaved=False, seqlen_offsets=0):
    rows = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
    return turn(x, cos[rows], sin[rows], not interleaved)


def _keras_hub(scaling_factor):
    tables = _tabulate(factor=scaling_factor)
    return lambda x, start_index: _flash_attn(x, *tables, seqlen_offsets=start_index)


def _llama(q, k, freqs_cis):
    return tuple(turn(x, freqs_cis.real, freqs_cis.imag, neox=False) for x in (q, k))


def transformers():
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=8,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
    )
    names = _name_arrays("bhsd", config=config, rotary_emb=llama.LlamaRotaryEmbedding(config))
    names |= {"position_ids": names["positions"][None]}
    names["cos"], names["sin"] = names["rotary_emb"](names["q"], names["position_ids"])
    return names | {"apply_rotary_pos_emb": llama.apply_rotary_pos_emb}


def rotary_embedding_torch():
    theirs = pytest.importorskip("rotary_embedding_torch")
    return _name_arrays("bhsd", RotaryEmbedding=theirs.RotaryEmbedding)


def flash_attn():
    cos, sin = _tabulate()
    return _name_arrays(cos=cos, sin=sin, apply_rotary_emb=_flash_attn)


def equinox():
    jax, eqx = pytest.importorskip("jax"), pytest.importorskip("equinox")
    return {"eqx": eqx, "x": jax.random.normal(jax.random.key(0), (TOKENS, 64))}


def meta():
    turns = torch.complex(*(t[:TOKENS] for t in _tabulate(5e5)))
    return _name_arrays(apply_rotary_emb=_llama, freqs_cis=turns)


LIBRARIES = {
    "torchtune": lambda: _name_arrays(RotaryPositionalEmbeddings=_torchtune),
    "transformers": transformers,
    "rotary-embedding-torch": rotary_embedding_torch,
    "flash-attn": flash_attn,
    "keras-hub": lambda: _name_arrays(RotaryEmbedding=_keras_hub),
    "equinox": equinox,
    "Meta's llama": meta,
}
