"""What patch() refuses, by name, leaving the model as it was."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.small_models import make

from rope_xp import RopeError
from rope_xp.integrations.transformers import patch, unpatch


def refused(model: Any, message: str) -> None:
    """Check that patch raises and leaves every module as it was."""
    kinds = [type(module) for module in model.modules()]
    keys = [set(vars(module)) for module in model.modules()]
    with pytest.raises(RopeError, match=message):
        patch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert [set(vars(module)) for module in model.modules()] == keys


def test_a_rule_that_changes_while_it_runs_is_refused() -> None:
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make("llama", rope_parameters=parameters)
    refused(model, r"model.rotary_emb \(LlamaRotaryEmbedding\).*patch\(model, length=n\)")
    patch(model, length=512)


def test_frequencies_that_the_configuration_does_not_say_are_refused() -> None:
    model = make("llama")
    model.model.rotary_emb.inv_freq *= 1.001
    refused(model, r"model.rotary_emb \(LlamaRotaryEmbedding\).*its buffer holds \[1.00")


def test_a_function_that_is_no_rotation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("transformers.models.llama.modeling_llama")

    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * cos.unsqueeze(1), k * sin.unsqueeze(1)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    refused(make("llama"), "apply_rotary_pos_emb: given tables .* does not rotate as any layout")


def test_models_without_rotary_modules_are_refused() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    for model_type, message in (
        ("gpt2", "GPT2Model: none of its modules makes angles .* not rotary"),
        ("bert", "BertModel: none .* positions are probably not rotary, as those of BERT"),
        ("gptj", "GPTJAttention calls apply_rotary_pos_emb, and reads cos and sin from a table"),
        ("codegen", "CodeGenAttention calls apply_rotary_pos_emb, and reads"),
        ("roformer", "RoFormerSelfAttention calls apply_rotary_position_embeddings, and reads"),
    ):
        more = {"rotary_dim": 8} if model_type in ("gptj", "codegen") else {}
        config = transformers.AutoConfig.for_model(model_type, **sizes, **more)
        refused(transformers.AutoModel.from_config(config), message)


@pytest.mark.parametrize("change", [patch, unpatch])
@pytest.mark.parametrize(("model", "kind"), [("Qwen/Qwen2-7B", "str"), (None, "NoneType")])
def test_what_is_no_model_is_a_type_error(change: Any, model: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"model must be a torch.nn.Module, .*; got {kind}$"):
        change(model)


def test_a_forward_that_something_replaced_is_refused() -> None:
    """Hooks that move modules between devices do that; the class would not be asked any more."""
    for part in ("rotary_emb", "layers.1.self_attn"):
        model = make("llama")
        module = model.model.get_submodule(part)
        module.forward = functools.partial(module.forward)
        refused(model, rf"model\.{part} .*something has replaced its forward")


def test_a_class_that_overrides_what_rotates_is_refused() -> None:
    model = make("llama")
    attention = model.model.layers[1].self_attn

    class Mine(type(attention)):  # type: ignore[misc]  # a class that is only known here
        def forward(self, *given: Any, **named: Any) -> Any:
            return super().forward(*given, **named)

    attention.__class__ = Mine
    advice = r"patch\(model, rotation=False\) replaces the rotary modules alone"
    refused(model, "Mine overrides forward, in which its base rotates q and k; " + advice)
    patch(model, rotation=False)


def test_models_without_weights_are_refused() -> None:
    with torch.device("meta"):
        model = make("llama")
    refused(model, r"LlamaRotaryEmbedding\): it is on the meta device; load its weights first")


def test_rotary_modules_without_positions_are_refused() -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.DINOv3ViTConfig(**sizes, intermediate_size=32)
    refused(transformers.DINOv3ViTModel(config), "its forward takes no position_ids")


def test_an_attention_factor_that_was_changed_is_refused() -> None:
    model = make("llama")
    model.model.rotary_emb.attention_scaling = 1.5
    refused(model, "says the attention factor 1.0, it 1.5")


def test_patching_twice_is_refused() -> None:
    model = patch(make("llama"))
    with pytest.raises(RopeError, match="patched already; unpatch it first"):
        patch(model)
