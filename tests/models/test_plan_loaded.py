"""Plans of loaded models of types that the table lacks, measured in one call."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support import remote_models, small_models
from support.cases import slow
from support.patched import LOGITS, logits

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


def forget(monkeypatch, model_type):
    """Take a type out of the table."""
    for name in (model_type, model_type.removesuffix("_text")):
        monkeypatch.delitem(_models.MODELS, name, raising=False)


def make(name):
    more = small_models.FAMILIES[name] | {"_experts_implementation": "eager"}
    return small_models.make(name, **more)


@pytest.mark.parametrize("name", [*SHORT, *map(slow, MORE.split())])
def test_models_of_forgotten_types_have_the_plan_of_the_table_and_are_patched(name, monkeypatch):
    model = make(name)
    expected, before = rope_xp.plan(model), logits(model)
    assert expected == rope_xp.plan(model.config)
    forget(monkeypatch, name)
    with pytest.raises(RopeConfigError, match=r"rope_xp\.plan\(model\) reads a loaded model"):
        rope_xp.plan(model.config)
    assert rope_xp.plan(model) == expected
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("name", REFUSED)
def test_models_whose_call_does_not_show_all_are_refused(name, monkeypatch):
    forget(monkeypatch, name)
    with pytest.raises(RopeConfigError, match=REFUSED[name]):
        rope_xp.plan(make(name))


def test_code_with_tables_of_a_length_and_layers_without_attention():
    model = remote_models.Model(remote_models.LengthAttention, layers=3, skipped=(1,))
    first, other, last = rope_xp.plan(model)
    assert (other.kind, other.heads) == ("other", None)
    assert first == last
    assert (first.head_dim, first.heads, first.kv_heads, first.softmax_scale) == (16, 4, 2, 0.25)
    assert first.rope == RoPE(base=5e4, layout="half")
    assert first.norm == NormPlan(eps=1e-5)


def test_code_with_complex_tables_of_a_slice():
    model = remote_models.Model(remote_models.ComplexAttention)
    rope = RoPE(base=5e4, rotary_dim=8, rotary_offset=-8)
    plans = rope_xp.plan(model)
    assert [replace(plan.rope, base=round(plan.rope.base)) for plan in plans] == [rope, rope]
    assert [(plan.heads, plan.kv_heads, plan.norm) for plan in plans] == [(4, 2, None)] * 2


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (remote_models.BackwardAttention, "layers.0: q turns by the negative angle"),
        (remote_models.InlineAttention, "layers.0: no module that takes positions returns"),
        (None, "no module of the model calls a function that rotates, by its name"),
    ],
)
def test_code_that_has_no_plan_is_refused_with_the_reason(attention, message):
    model = remote_models.Model(attention, skipped=() if attention else (0, 1))
    with pytest.raises(RopeConfigError, match=message):
        rope_xp.plan(model)


def test_models_that_need_other_input_are_refused():
    model = remote_models.Model(remote_models.LengthAttention)
    model.forward = lambda pixel_values: pixel_values.dot(pixel_values)
    with pytest.raises(RopeConfigError, match="the model fails for a few tokens: .*1D tensors"):
        rope_xp.plan(model)


def test_reading_leaves_no_hooks_and_the_profiler_that_was_set():
    import sys

    model, seen = remote_models.Model(remote_models.LengthAttention), []

    def profile(*_):
        seen.append(1)

    sys.setprofile(profile)
    try:
        rope_xp.plan(model)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert not any(module._forward_hooks for module in model.modules())
