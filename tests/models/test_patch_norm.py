"""RMSNorms of q and k that the rotation of a patched transformers model computes."""

import copy
import pickle

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.cases import slow
from support.patched import TOKENS, gradients, logits, refuse
from support.small_models import make, multimodal_text
from transformers.models.qwen3 import modeling_qwen3

from rope_xp._dispatch import find
from rope_xp.integrations import _norms
from rope_xp.integrations.transformers import patch, unpatch


def make_model(name, **more):
    """Return a model with random weights of norms, which begin as ones or zeros."""
    model = make(name, **{"head_dim": 16, **more})
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if key.endswith("_norm.weight"):
                weight.add_(torch.randn_like(weight) / 4)
    return model


def assert_near(results, expected):
    # Float32 of a few layers.
    assert (results - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3", {}),
        ("qwen3_moe", {}),
        ("gemma3_text", {}),
        slow("lfm2", {"layer_types": ["full_attention"] * 2}),  # calls its norms q_layernorm
    ],
)
def test_patched_norms_keep_logits_and_gradients(name, more, monkeypatch):
    model = make_model(name, **more)
    keys, before = list(model.state_dict()), logits(model)
    own_gradients = gradients(model, "_norm.weight")
    assert patch(model, norm=True) is model
    assert list(model.state_dict()) == keys
    with monkeypatch.context() as context:
        context.setattr(_norms.Unnormalized, "normalize", None)  # only the rotation computes it
        assert_near(logits(model), before)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(logits(copied), logits(model))
        list(map(assert_near, gradients(model, "_norm.weight"), own_gradients))
        model.train().activation_checkpointing_enable({"use_reentrant": False})
        list(map(assert_near, gradients(model, "_norm.weight"), own_gradients))
    assert torch.equal(logits(unpatch(model.eval())), before)


def test_patched_norms_in_16_bits_are_as_near_to_the_truth_as_the_model():
    exact, model = logits(make_model("qwen3")), make_model("qwen3")
    theirs = (logits(model.bfloat16()) - exact).square().mean()
    ours = (logits(patch(model, norm=True)) - exact).square().mean()
    assert ours < 1.1 * theirs  # it rounds less, but other roundings hide that


@pytest.mark.slow
def test_patched_norms_compile_to_one_graph(monkeypatch):
    torch._dynamo.reset()  # of what other tests compiled
    # Dynamo must not trace how the class of a weight is found.
    monkeypatch.delitem(find.by_type, torch.nn.Parameter, raising=False)
    model = make_model("gemma3_text")
    before, model = logits(model), patch(model, norm=True)
    model.model.layers[0].self_attn.compile(backend="eager", fullgraph=True)
    assert_near(logits(model, use_cache=False), before)


def test_patch_fuses_norms_of_a_decorated_attention(monkeypatch):
    class Decorated(modeling_qwen3.Qwen3Attention):
        forward = torch.no_grad()(modeling_qwen3.Qwen3Attention.forward)

    model = make_model("qwen3", num_hidden_layers=1)
    before = logits(model)
    model.model.layers[0].self_attn.__class__ = Decorated
    patch(model, norm=True)
    monkeypatch.setattr(_norms.Unnormalized, "normalize", None)
    assert_near(logits(model), before)


def test_patched_norm_takes_weights_that_its_forward_alone_has():
    """As ZeRO-3 shards them."""
    model = make_model("qwen3")
    before = logits(model)
    norm = patch(model, norm=True).model.layers[0].self_attn.q_norm
    full, norm.weight.data = norm.weight.data, torch.empty(0)
    norm.register_forward_pre_hook(lambda *_: setattr(norm.weight, "data", full))
    norm.register_forward_hook(lambda *_: setattr(norm.weight, "data", torch.empty(0)))
    assert_near(logits(model), before)


def test_patch_refuses_a_norm_that_contains_modules():
    model = make_model("qwen3")
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.q_norm)
    refuse(patch, model, "contains other modules.*patch the model before", norm=True)


def test_patched_norms_of_mrope_keep_the_hidden_states():
    model = multimodal_text("qwen3_vl_text")
    before = model(TOKENS).last_hidden_state
    assert_near(patch(model, norm=True)(TOKENS).last_hidden_state, before)


def test_patched_norms_hand_tensors_to_a_function_that_is_replaced_later(monkeypatch):
    rotate, model = modeling_qwen3.apply_rotary_pos_emb, make_model("qwen3")
    before, model = logits(model), patch(model, norm=True)
    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", lambda *xs: rotate(*xs))
    assert_near(logits(model), before)


@pytest.mark.parametrize(
    ("name", "message", "options"),
    [
        ("llama", "LlamaForCausalLM: no layer normalizes q and k before", {}),
        ("qwen3", "norm=True needs rotation=True", {"rotation": False}),
        ("olmo2", r"self_attn\.q_norm \(Olmo2RMSNorm\) .* norm spans heads: .*\(64,\), not", {}),
        ("exaone4", "Exaone4Attention does not always rotate after it", {}),  # some layers
        ("hunyuan_v1_dense", "HunYuanDenseV1Attention does not always rotate after it", {}),
        ("persimmon", r"q_layernorm \(LayerNorm\) .* it is no RMSNorm", {}),
    ],
)
def test_patch_refuses_norms_that_the_rotation_cannot_compute(name, message, options):
    refuse(patch, make_model(name), message, norm=True, **options)
