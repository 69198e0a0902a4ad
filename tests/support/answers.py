"""The names that the table of docs/start.md uses: each library's own, or its formula.

One namespace a library: what its users call, and the arrays that they have. Formulae are those of
peers.py behind the signature of the library.
"""

import contextlib
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rope_xp
from rope_xp import RoPE
from rope_xp.integrations import apply_rotary_transformers
from rope_xp.scaling import NTK, Linear

from . import peers

TOKENS = 5
OURS = {"rope_xp": rope_xp, "RoPE": RoPE, "Linear": Linear, "NTK": NTK, "torch": torch, "np": np}
OURS |= {"apply_rotary_transformers": apply_rotary_transformers}


def _draw_arrays(axes):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, TOKENS, heads, 64, generator=generator) for heads in (8, 2))
    if axes == "bhsd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return {"q": q, "k": k, "positions": 7 + torch.arange(TOKENS)}


def _import_module(module):
    with contextlib.suppress(ImportError):
        return importlib.import_module(module)
    return None


def _multiply_pairs(x, turns):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3)


def torchtune():
    def formula(dim, base=10_000):
        angles = peers.compute_angles(torch.arange(32), dim, base)
        turns = torch.polar(torch.ones_like(angles), angles)

        def rotate(x, *, input_pos=None):
            rows = torch.arange(x.shape[1]) if input_pos is None else input_pos
            return _multiply_pairs(x, turns[rows])

        return rotate

    theirs = _import_module("torchtune.modules.position_embeddings")
    rotary = theirs.RotaryPositionalEmbeddings if theirs else formula
    return _draw_arrays("bshd") | {"RotaryPositionalEmbeddings": rotary}


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
    arrays = _draw_arrays("bhsd")
    position_ids = arrays["positions"][None]
    rotary_emb = llama.LlamaRotaryEmbedding(config)
    names = {"config": config, "position_ids": position_ids, "rotary_emb": rotary_emb}
    names["cos"], names["sin"] = rotary_emb(arrays["q"], position_ids)
    return arrays | names | {"apply_rotary_pos_emb": llama.apply_rotary_pos_emb}


def rotary_embedding_torch():
    theirs = pytest.importorskip("rotary_embedding_torch")
    return _draw_arrays("bhsd") | {"RotaryEmbedding": theirs.RotaryEmbedding}


def flash_attn():
    def formula(x, cos, sin, interleaved=False, seqlen_offsets=0):
        rows = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
        return peers.flash_attn(x, cos[rows], sin[rows], interleaved)

    angles = peers.compute_angles(torch.arange(32))
    tables = {"cos": angles.cos(), "sin": angles.sin()}
    return _draw_arrays("bshd") | tables | {"apply_rotary_emb": formula}  # its own needs a GPU


def keras_hub():
    def formula(max_wavelength=10_000, scaling_factor=1.0):
        def rotate(x, start_index=0):
            assert max_wavelength == 10_000  # as the formula of peers.py has it
            return torch.from_numpy(
                peers.keras_hub(x.numpy(), start_index + np.arange(x.shape[1]), scaling_factor)
            )

        return rotate

    theirs = _import_module("keras_hub")
    rotary = theirs.layers.RotaryEmbedding if theirs else formula
    return _draw_arrays("bshd") | {"RotaryEmbedding": rotary}


def equinox():
    eqx = pytest.importorskip("equinox")
    import jax
    import jax.numpy as jnp

    q = jax.random.normal(jax.random.key(0), (TOKENS, 8, 64))
    return {"eqx": SimpleNamespace(nn=eqx.nn), "jax": jax, "jnp": jnp, "q": q, "x": q[:, 0]}


def meta():
    def formula(q, k, freqs_cis):
        return _multiply_pairs(q, freqs_cis), _multiply_pairs(k, freqs_cis)

    angles = peers.compute_angles(torch.arange(TOKENS), base=5e5)
    turns = torch.polar(torch.ones_like(angles), angles)
    return _draw_arrays("bshd") | {"apply_rotary_emb": formula, "freqs_cis": turns}


LIBRARIES = {
    "torchtune": torchtune, "transformers": transformers,
    "rotary-embedding-torch": rotary_embedding_torch, "flash-attn": flash_attn,
    "keras-hub": keras_hub, "equinox": equinox, "Meta's llama": meta,
}  # fmt: skip
