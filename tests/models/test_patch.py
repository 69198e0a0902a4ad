"""The rotation of transformers' models, handed to rope_xp and taken back."""

import copy
import doctest
import importlib
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.cases import slow
from support.lazily import Lazily
from support.patched import LOGITS, TOKENS, generate, gradients, is_ours, logits, modeling
from support.small_models import make

import rope_xp
from rope_xp.integrations import _replacements
from rope_xp.integrations.transformers import patch, unpatch

dynamo = Lazily("torch._dynamo.testing")

# One for each way in which models write the rotation, and what there is but once.
SHORT = ["llama", "gemma3_text", "phi3", "glm", "cohere", "deepseek_v3", "gpt_oss", "llama4_text"]
MORE = """
    deepseek_v2 deepseek_v4 ernie4_5 falcon gemma4_text gpt_neox minimax_m2 olmo2 persimmon phi
    qwen3 smollm3 stablelm
"""
# The weights that q and k pass through.
TURNED = ("q_", "k_", "qkv", "query_key_value", "kv_")


@pytest.mark.parametrize("name", [*SHORT, *map(slow, MORE.split())])
def test_patched_model_has_its_logits_gradients_and_generation(name):
    model = make(name)
    before, own_gradients, tail = logits(model), gradients(model, *TURNED), generate(model)
    elsewhere = logits(model, position_ids=3 * torch.arange(24)[None])
    assert (before - elsewhere).abs().max() > 0.02  # else nothing here could fail

    assert not is_ours(logits, model)
    assert patch(model) is model
    assert is_ours(logits, model)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=LOGITS)
    assert own_gradients
    torch.testing.assert_close(gradients(model, *TURNED), own_gradients, rtol=0, atol=LOGITS)
    assert torch.equal(generate(model), tail)

    assert unpatch(model) is model
    assert torch.equal(logits(model), before)


def generate_padded(model, cache="static"):
    mask = torch.ones_like(TOKENS)
    mask[0, :5] = 0
    return generate(model, attention_mask=mask, cache_implementation=cache)


def train_checkpointed(model):
    model.train().activation_checkpointing_enable({"use_reentrant": False})
    return torch.cat([gradient.flatten() for gradient in gradients(model, *TURNED)])


def compute_around_context(model):
    """LongRoPE switches by the largest position of a call: 31 is the last of a context of 32."""
    starts = torch.tensor([8, 9, 10])[:, None, None]
    return torch.stack([logits(model, position_ids=s + torch.arange(24)) for s in starts])


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("llama", train_checkpointed),
        # Phi-3 goes past the 32 tokens after which LongRoPE takes the other frequencies.
        ("phi3", partial(generate_padded, cache=None)),
        ("phi3", compute_around_context),
        ("gemma3_text", generate_padded),
    ],
)
def test_patched_model_in_each_use_computes_as_before(name, compute):
    expected, result = compute(make(name)), compute(patch(make(name)))
    torch.testing.assert_close(result, expected, rtol=0, atol=LOGITS)


def test_patched_modules_compiled_one_by_one_share_a_graph():
    """All modules of a class get the same class, so that torch.compile does not start anew."""
    model = patch(make("llama", num_hidden_layers=6))
    before, counter = logits(model), dynamo.CompileCounter()
    torch._dynamo.reset()
    model.model.rotary_emb.compile(backend="eager", fullgraph=True)
    for layer in model.model.layers:
        layer.compile(backend=counter, fullgraph=True)
    after = logits(model, use_cache=False)  # each layer would look at its own cache
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert counter.frame_count == 1


# Float32 angles near a million are wrong by up to 0.06, and a cast to bfloat16 rounds frequencies.
@pytest.mark.parametrize(
    ("dtype", "start", "step", "factor"),
    [(torch.float32, 10**6, 1, 50), (torch.bfloat16, 0, 40, 2)],
)
def test_patched_model_is_nearer_to_the_truth(dtype, start, step, factor, monkeypatch):
    """The truth: the model in float64, with angles of plain float64 products."""
    model = make("llama", max_position_embeddings=2_000_000)
    exact = copy.deepcopy(model).double()

    def truth(x, position_ids):
        angles = position_ids[..., None] * 1e4 ** -(torch.arange(0, 16, 2) / 16).double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(exact.model.rotary_emb, "forward", truth)
    positions = start + step * torch.arange(24)[None]
    expected = logits(exact, position_ids=positions)
    theirs = (logits(model.to(dtype), position_ids=positions) - expected).abs().mean()
    after = logits(patch(model), position_ids=positions)
    assert after.dtype == dtype
    assert (after - expected).abs().mean() < theirs / factor


def test_replacement_calls_the_models_function_for_queries_of_the_last_tokens():
    """An assistant reads the cache of another model: k has more tokens than q."""
    function = modeling("muse_glimmer_assistant").apply_rotary_pos_emb
    ours = _replacements.build_replacement("apply_rotary_pos_emb", function, None, ["halves"])
    q, k, tables = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 2, 7, 8)
    q, k = q.bfloat16(), k.bfloat16()
    expected = function(q, k, *tables.bfloat16())
    assert all(map(torch.equal, ours(q, k, *tables), expected))


def test_patch_leaves_other_models_of_the_type_and_unpatch_leaves_nothing():
    model, other = make("llama"), make("llama")
    keys = list(model.state_dict())
    function, classes = modeling("llama").apply_rotary_pos_emb, list(map(type, other.modules()))
    attributes = [set(vars(module)) for module in other.modules()]
    assert list(patch(model).state_dict()) == keys
    assert modeling("llama").apply_rotary_pos_emb is function
    assert list(map(type, other.modules())) == classes
    unpatch(model)
    assert list(map(type, model.modules())) == classes
    assert [set(vars(module)) for module in model.modules()] == attributes


def test_patch_with_a_length_fixes_rules_that_depend_on_it():
    model = make("phi3")
    short = logits(model, TOKENS[:, :16])
    assert (short - logits(patch(model, length=64), TOKENS[:, :16])).abs().max() > 0.01
    rotary, rope = model.model.rotary_emb, rope_xp.from_hf_config(model.config).for_length(64)
    cos, _ = rotary(torch.zeros(1), torch.arange(9)[None])
    torch.testing.assert_close(cos[0, :, :8], torch.tensor(rope.cos_sin(range(9), 16)[0]))


@pytest.mark.parametrize(
    "name", ["_caches", "_drop_in", "_diffusion.config", "diffusers", "transformers"]
)
def test_examples_of_integrations_run(name):
    pytest.importorskip("numpy" if name.startswith("_") else name)
    results = doctest.testmod(importlib.import_module(f"rope_xp.integrations.{name}"))
    assert results.attempted > 3
    assert results.failed == 0
