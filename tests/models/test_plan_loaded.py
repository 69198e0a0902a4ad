"""Plans of loaded models of types that the table lacks, measured in one call."""

import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.cases import slow
from support.patched import LOGITS, logits
from support.small_models import make
from torch import nn
from transformers.models.llama.modeling_llama import rotate_half

import rope_xp
from rope_xp import RoPE, RopeConfigError
from rope_xp.hf import NormPlan, _models
from rope_xp.integrations.transformers import patch

# Partial, interleaved, latent with an indexer, two bases, without rotation, norms, linear layers.
SHORT = ["cohere", "deepseek_v32", "gemma3_text", "glm", "olmo_hybrid", "qwen3", "smollm3"]
MORE = """
    beam bitnet diffllama ernie4_5 exaone4 flex_olmo gpt_oss granitemoe hunyuan_v1_dense hy_v4
    laguna lara_mini llama4_text minimax_m2 olmo2 phi stablelm gemma4_text mimo_v2_flash minicpm3
"""
REFUSED = {
    "axk2": "it rotates 8 components of 24, and no view shows which",
    "dots3_note_text": "its k_rope_only_layernorm may be a norm of q or k, of 8 components",
    "ministral3": "llama_4_scaling_beta scales q by positions that one call does not have",
    "phi3": "angles depend on the largest position of a call: they change beyond 32",
}


def forget(name, monkeypatch):
    """Take a type out of the table."""
    for key in (name, name.removesuffix("_text")):
        monkeypatch.delitem(_models.MODELS, key, raising=False)


@pytest.mark.parametrize("name", [*SHORT, *map(slow, MORE.split())])
def test_plan_of_a_loaded_model_of_a_forgotten_type_is_that_of_the_table(name, monkeypatch):
    model = make(name, _experts_implementation="eager")
    expected, before = rope_xp.plan(model), logits(model)
    forget(name, monkeypatch)
    with pytest.raises(RopeConfigError, match=r"rope_xp\.plan\(model\) reads a loaded model"):
        rope_xp.plan(model.config)
    assert rope_xp.plan(model) == expected
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("name", REFUSED)
def test_plan_refuses_a_loaded_model_whose_call_does_not_show_all(name, monkeypatch):
    forget(name, monkeypatch)
    with pytest.raises(RopeConfigError, match=REFUSED[name]):
        rope_xp.plan(make(name, _experts_implementation="eager"))


# --- code as repositories of the Hub carry it, of a type that nobody knows -----------------------

WIDTH, HEAD_DIM, BASE = 64, 16, 5e4


class Tables(nn.Module):
    """Tables of a given length, as Llama's code had them before positions were passed to it."""

    def __init__(self):
        super().__init__()
        frequencies = BASE ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x, seq_len):
        angles = torch.outer(torch.arange(seq_len), self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Complex(nn.Module):
    """Complex numbers from positions, of half a head, as Meta's code of Llama has them."""

    def forward(self, position_ids):
        steps = torch.arange(0, 8, 2, dtype=torch.float64) / 8
        angles = position_ids[..., None] * BASE**-steps
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply_rotary_pos_emb(q, k, cos, sin, position_ids):
    cos, sin = (table[position_ids].unsqueeze(1) for table in (cos, sin))
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_rotary_emb(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, :, None]).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Rotates heads before tokens, after a norm, from tables that it makes for each call."""

    def __init__(self):
        super().__init__()
        self.head_dim = HEAD_DIM
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.rotary_emb = Tables()
        self.q_norm, self.k_norm = (nn.RMSNorm(HEAD_DIM, eps=1e-5) for _ in range(2))

    def forward(self, x, position_ids):
        q, k = (project(x).unflatten(-1, (-1, HEAD_DIM)) for project in (self.q, self.k))
        q, k = self.rotate(q, k, position_ids)
        k = k.repeat_interleave(2, dim=1)
        return (q @ k.mT).softmax(-1).matmul(k).transpose(1, 2).flatten(2)

    def rotate(self, q, k, position_ids):
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        cos, sin = self.rotary_emb(k, seq_len=k.shape[-2])
        return apply_rotary_pos_emb(q, k, cos, sin, position_ids)


class ComplexAttention(Attention):
    """Rotates the end of a head, q and k one after the other, with tokens before heads."""

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm, self.rotary_emb = None, None, Complex()

    def rotate(self, q, k, position_ids):
        freqs_cis = self.make_tables(position_ids)
        turned = [(x[..., :8], apply_rotary_emb(x[..., 8:], freqs_cis)) for x in (q, k)]
        return [torch.cat(parts, dim=-1).transpose(1, 2) for parts in turned]

    def make_tables(self, position_ids):
        return self.rotary_emb(position_ids)


class InlineAttention(ComplexAttention):
    def make_tables(self, position_ids):
        return self.rotary_emb.forward(position_ids)  # in no call of a module


class Config:
    def to_dict(self):
        return {"model_type": "mine", "rope_theta": BASE, "max_position_embeddings": 512}


class Model(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.config, self.embed = Config(), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(layer() for layer in layers)

    def forward(self, input_ids):
        x, ids = self.embed(input_ids), torch.arange(input_ids.shape[1])[None]
        for layer in self.layers:
            x = x + (layer(x) if isinstance(layer, nn.Identity) else layer(x, ids))
        return x


def test_plan_reads_code_with_tables_of_a_length_and_layers_without_attention():
    first, other, last = rope_xp.plan(Model(Attention, nn.Identity, Attention))
    assert (other.kind, other.heads) == ("other", None)
    assert first == last
    assert (first.head_dim, first.heads, first.kv_heads, first.softmax_scale) == (16, 4, 2, 0.25)
    assert first.rope == RoPE(base=BASE, layout="half")
    assert first.norm == NormPlan(eps=1e-5)


def test_plan_reads_code_with_complex_tables_of_a_slice():
    (plan,) = rope_xp.plan(Model(ComplexAttention))
    rope = RoPE(base=BASE, rotary_dim=8, rotary_offset=-8)
    assert replace(plan.rope, base=round(plan.rope.base)) == rope
    assert (plan.heads, plan.kv_heads, plan.norm) == (4, 2, None)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (InlineAttention, "layers.0: no module that takes positions returns"),
        (nn.Identity, "no module of the model calls a function that rotates, by its name"),
    ],
)
def test_plan_refuses_code_that_has_no_plan_with_the_reason(attention, message):
    with pytest.raises(RopeConfigError, match=message):
        rope_xp.plan(Model(attention))


def test_plan_refuses_a_model_that_needs_other_input():
    model = Model(Attention)
    model.forward = lambda pixel_values: pixel_values.dot(pixel_values)
    with pytest.raises(RopeConfigError, match="the model fails for a few tokens: .*1D tensors"):
        rope_xp.plan(model)


def test_plan_leaves_no_hooks_and_the_profiler_that_was_set():
    def profile(*_):
        pass

    model = Model(Attention)
    sys.setprofile(profile)
    try:
        rope_xp.plan(model)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert not any(module._forward_hooks for module in model.modules())
