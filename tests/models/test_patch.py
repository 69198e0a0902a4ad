"""The rotation of transformers' models, handed to rope_xp and taken back."""

import copy
import doctest
import importlib
import itertools
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.cases import slow
from support.lazily import Lazily
from support.patched import LOGITS, TOKENS, generate, gradients, is_ours, logits, modeling, replaced
from support.small_models import MODELS, make

import rope_xp
from rope_xp.integrations.transformers import patch, unpatch

dynamo = Lazily("torch._dynamo.testing")

# One for each way in which models write the rotation, and what there is but once.
SHORT = ["llama", "gemma3_text", "phi3", "glm", "cohere", "deepseek_v3", "gpt_neox", "llama4_text"]
# The weights that q and k pass through.
TURNED = ("q_", "k_", "qkv", "query_key_value", "kv_")


@pytest.mark.parametrize("name", [n if n in SHORT else slow(n) for n in MODELS])
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


def test_patched_model_at_far_positions_is_nearer_to_the_truth(monkeypatch):
    """The truth: the model in float64, with angles of plain float64 products."""
    model = make("llama", max_position_embeddings=2_000_000)
    exact = copy.deepcopy(model).double()

    def truth(x, position_ids):
        angles = position_ids[..., None] * 1e4 ** -(torch.arange(0, 16, 2) / 16).double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(exact.model.rotary_emb, "forward", truth)
    positions = 1_000_000 + torch.arange(24)[None]
    expected = logits(exact, position_ids=positions)
    theirs = (logits(model, position_ids=positions) - expected).abs().max()
    ours = (logits(patch(model), position_ids=positions) - expected).abs().max()
    # Float32 angles near a million are wrong by up to 0.06; ours leave the model's own rounding.
    assert ours < LOGITS
    assert theirs > 50 * ours


def test_replacement_with_unusual_arguments_calls_the_models_function_in_the_dtype_of_q():
    function, ours = replaced("deepseek_v3", "halves", "apply_rotary_pos_emb_interleave")
    q, tables = torch.randn(2, 3, 5, 8).bfloat16(), torch.randn(2, 2, 5, 8)
    for options in ({}, {"position_ids": torch.arange(5)}, {"unsqueeze_dim": 1}):
        for y in ours(q, q, *tables, **options):
            # the model's function in float32, rounded once
            expected = function(q.float(), q.float(), *tables)[0].bfloat16()
            assert y.dtype == torch.bfloat16
            assert torch.equal(y, expected)


@pytest.mark.parametrize(
    ("kind", "form", "width"),
    [("llama", "halves", 8), ("cohere", "neighbours", 8), ("gpt_oss", "pairs", 4)],
)
def test_replacement_called_again_reads_the_tables_that_it_is_given(kind, form, width):
    """Without gradients such a call is bound, with them it is not."""
    _, ours = replaced(kind, form)
    shapes = (2, 3, 5, 8), (2, 5, 3, 8), (1, 3, 5, 8)
    for _ in range(3):
        for shape, dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
            q, k = torch.randn(2, *shape).to(dtype)
            named = {"unsqueeze_dim": 2} if shape[1] == 5 else {}
            wide = torch.randn(2, shape[0], 5, 2 * width)
            left = wide[..., :width]
            for tables in (left.contiguous(), left, wide[:, :1, :, width:]):
                expected = ours(q, k, *tables, **named)
                with torch.no_grad():
                    got, other = (ours(q, k, *t, **named) for t in (tables, 2 * tables))
                assert all(map(torch.equal, got, expected))
                assert not any(map(torch.equal, other, expected))


def test_patched_model_cast_to_bfloat16_keeps_its_frequencies():
    """model.to(bfloat16) rounds inv_freq as well, and angles of far tokens drift apart."""
    positions = 40 * torch.arange(24)[None]
    exact = logits(make("llama"), position_ids=positions)
    half = make("llama").to(torch.bfloat16)
    theirs = (logits(half, position_ids=positions).float() - exact).abs().mean()
    after = logits(patch(half), position_ids=positions)
    assert after.dtype == torch.bfloat16
    assert (after.float() - exact).abs().mean() < 0.5 * theirs


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
