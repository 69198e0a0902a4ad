"""No model is patched by half: what patch() refuses, by name, and where tables may get to."""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.patched import LOGITS, is_ours, logits, modeling, refuse
from support.small_models import make
from torch import nn
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    apply_rotary_pos_emb,
)

from rope_xp.integrations.transformers import check, patch, unpatch

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def replace_forward(module):
    module.forward = functools.partial(module.forward)


class Mine(LlamaAttention):
    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r"model.rotary_emb \(LlamaRotaryEmbedding\).*its buffer holds \[1.00",
         lambda model: model.rotary_emb.inv_freq.mul_(1.001)),
        ("gives attention factor 1.0, it has 1.5",
         lambda model: setattr(model.rotary_emb, "attention_scaling", 1.5)),
        (r"model\.rotary_emb .*something has replaced its forward",
         lambda model: replace_forward(model.rotary_emb)),
        (r"layers\.1\.self_attn .*something has replaced its forward",
         lambda model: replace_forward(model.layers[1].self_attn)),
        ("patched already; unpatch it first", patch),
        (r"Mine overrides forward, which rotates .*; patch\(model, rotation=False\) replaces only",
         lambda model: setattr(model.layers[1].self_attn, "__class__", Mine)),
        (r"LlamaRotaryEmbedding\): it is on the meta device; load its weights",
         lambda model: model.to("meta")),
    ],
)  # fmt: skip
def test_patch_refuses_a_module_that_was_changed(message, change):
    model = make("llama")
    change(model.model)
    refuse(patch, model, message)


def test_patch_refuses_a_function_that_is_no_rotation(monkeypatch):
    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return q * cos.unsqueeze(1), k * sin.unsqueeze(1)

    monkeypatch.setattr(modeling("llama"), "apply_rotary_pos_emb", apply_rotary_pos_emb)
    message = "apply_rotary_pos_emb: with tables .* not rotate in any known layout"
    refuse(patch, make("llama"), message)


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("dinov3_vit", "its forward takes no position_ids"),
        ("bert", "BertModel: none of its modules computes angles, .*testing.identify"),
    ],
)
def test_patch_refuses_a_model_without_rotary_modules(model_type, message):
    config = transformers.AutoConfig.for_model(model_type, **SIZES)
    refuse(patch, transformers.AutoModel.from_config(config), message)


@pytest.mark.parametrize("change", [patch, unpatch, check])
def test_patch_unpatch_and_check_refuse_a_name_in_place_of_a_model(change):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, .*; got str$"):
        change("Qwen/Qwen2-7B")


def test_patch_without_a_length_refuses_a_rule_that_changes_while_it_runs():
    model = make("llama", rope_parameters=DYNAMIC)
    message = r"model.rotary_emb \(LlamaRotaryEmbedding\).*patch\(model, length=n\)"
    refuse(patch, model, message)
    patch(model, length=512)


class Kernel(nn.Module):
    """What the package kernels puts in place of a function: its signature, and no name.

    transformers 5.23 asks for kernels 0.18.2, which is not to be had here, so this simulates it.
    """

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


def test_patch_takes_a_function_that_the_package_kernels_makes_a_module(monkeypatch):
    model, layer = make("llama"), Kernel()
    before = logits(model)
    layer.forward = None  # kernelize(model) sets one for a GPU
    monkeypatch.setattr(modeling("llama"), "apply_rotary_pos_emb", layer)
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)


def turn(x, cos, sin):
    return cos * x


class Reads(LlamaMLP):
    def rotate(self, x, tables):
        cos, _ = tables
        return x * cos


class CallsAFunction(LlamaMLP):
    @torch.no_grad()
    def rotate(self, x, tables):
        return turn(x, *tables)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Reads, r"Reads\.rotate: it reads cos"),
        (CallsAFunction, r"CallsAFunction\.rotate: it calls turn"),
    ],
)
def test_patch_refuses_a_class_that_reads_tables_and_calls_nothing_that_rotates(kind, message):
    """The rotary modules alone are patched."""
    model = make("llama")
    model.model.layers[1].mlp.__class__ = kind
    before = logits(model)
    reason = r", and no function that is replaced rotates there; .*rotation=False"
    refuse(patch, model, message + reason)
    torch.testing.assert_close(logits(patch(model, rotation=False)), before, rtol=0, atol=LOGITS)


# --- functions that are replaced after a model was patched ---------------------------------------


def test_patched_model_calls_a_rotation_that_is_replaced_later_in_the_dtype_of_q(monkeypatch):
    model, dtypes = patch(make("llama").bfloat16()), set()
    before, rotate = logits(model), modeling("llama").apply_rotary_pos_emb

    def turned_twice(q, k, cos, sin, unsqueeze_dim=1):
        dtypes.update({q.dtype, k.dtype, cos.dtype, sin.dtype})
        return rotate(*rotate(q, k, cos, sin, unsqueeze_dim), cos, sin, unsqueeze_dim)

    with monkeypatch.context() as later:
        later.setattr(modeling("llama"), "apply_rotary_pos_emb", turned_twice)
        assert (logits(model) - before).abs().max() > 0.02
        assert dtypes == {torch.bfloat16}
        assert not is_ours(logits, model)
    assert torch.equal(logits(model), before)
    assert is_ours(logits, model)


def test_patch_replaces_the_function_that_a_module_holds_at_the_time(monkeypatch):
    model, before = make("llama"), logits(patch(make("llama")))
    interleaved = modeling("deepseek_v3").apply_rotary_pos_emb_interleave
    with monkeypatch.context() as later:
        later.setattr(modeling("llama"), "apply_rotary_pos_emb", interleaved)
        theirs = logits(model)
        assert (theirs - before).abs().max() > 0.02
        torch.testing.assert_close(logits(patch(model)), theirs, rtol=0, atol=LOGITS)
        assert is_ours(logits, model)
    # Its function is no longer there: the one that is, rotates.
    torch.testing.assert_close(logits(model), before, rtol=0, atol=LOGITS)
