"""The rotation of transformers' models, handed to rope_xp and taken back."""

import copy
import doctest
import importlib
import itertools
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch._dynamo.testing
from support.exhaustive import exhaustive
from support.patched import LOGITS, TOKENS, logits, replaced
from support.small_models import MODELS, make

import rope_xp
from rope_xp.integrations.transformers import patch, unpatch

# One for each way in which models write the rotation, and what there is but once.
SHORT = ["llama", "gemma3_text", "phi3", "glm", "cohere", "deepseek_v3", "gpt_neox", "llama4_text"]


def gradients(model):
    """Return the gradients of all weights that q and k pass through."""
    model.zero_grad()
    model(TOKENS, use_cache=False).logits.square().mean().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if any(part in name for part in ("q_", "k_", "qkv", "query_key_value", "kv_"))
        and parameter.grad is not None
    }


def generate(model, **options):
    return model.generate(
        TOKENS, max_new_tokens=8, do_sample=False, pad_token_id=0, disable_compile=True, **options
    )


@pytest.mark.parametrize("name", [n if n in SHORT else exhaustive(n) for n in MODELS])
def test_logits_gradients_and_generation(name):
    model = make(name)
    before, own_gradients, tail = logits(model), gradients(model), generate(model)
    elsewhere = logits(model, position_ids=3 * torch.arange(24)[None])
    assert (before - elsewhere).abs().max() > 0.02  # else nothing here could fail

    assert patch(model) is model
    torch.testing.assert_close(logits(model), before, rtol=0, atol=LOGITS)
    after = gradients(model)
    assert after.keys() == own_gradients.keys() != set()
    for key, gradient in own_gradients.items():
        torch.testing.assert_close(after[key], gradient, rtol=0, atol=LOGITS)
    assert torch.equal(generate(model), tail)

    assert unpatch(model) is model
    assert torch.equal(logits(model), before)


def generate_padded(model, cache="static"):
    mask = torch.ones_like(TOKENS)
    mask[0, :5] = 0
    return generate(model, attention_mask=mask, cache_implementation=cache)


def compute_compiled(model, backend="eager"):
    torch._dynamo.reset()
    return logits(torch.compile(model, fullgraph=True, backend=backend))


def train_checkpointed(model):
    model.train().activation_checkpointing_enable({"use_reentrant": False})
    return torch.cat([gradient.flatten() for gradient in gradients(model).values()])


def compute_around_context(model):
    """LongRoPE switches by the largest position of a call: 31 is the last of a context of 32."""
    starts = torch.tensor([8, 9, 10])[:, None, None]
    return torch.stack([logits(model, position_ids=s + torch.arange(24)) for s in starts])


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        *(("llama", f) for f in (generate_padded, compute_compiled, train_checkpointed)),
        # Phi-3 goes past the 32 tokens after which LongRoPE takes the other frequencies.
        *(("phi3", f) for f in (partial(generate_padded, cache=None), compute_around_context)),
        *(exhaustive(name, generate_padded) for name in ("deepseek_v3", "gemma3_text")),
        *(
            exhaustive(name, partial(compute_compiled, backend="inductor"))
            for name in ("gemma3_text", "phi3")
        ),
    ],
)
def test_uses_of_a_model(name, compute):
    expected, result = compute(make(name)), compute(patch(make(name)))
    torch.testing.assert_close(result, expected, rtol=0, atol=LOGITS)


def test_each_layer_compiled_by_itself_is_one_graph():
    """All modules of a class get the same class, so that torch.compile does not start anew."""
    model = patch(make("llama", num_hidden_layers=6))
    before = logits(model)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    for layer in model.model.layers:
        layer.compile(backend=counter)
    after = logits(model, use_cache=False)  # each layer would look at its own cache
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert counter.frame_count == 1


def is_patched(module):
    return "_patched_by_rope_xp" in vars(type(module))


@pytest.mark.parametrize("name", ["llama", exhaustive("gemma3_text"), exhaustive("deepseek_v3")])
def test_far_positions_are_nearer_to_the_truth(name, monkeypatch):
    """The truth: the model in float64, with angles of plain float64 products."""
    options = {"first_k_dense_replace": 2} if name == "deepseek_v3" else {}  # experts lack float64
    model = make(name, max_position_embeddings=2_000_000, **options)
    exact = copy.deepcopy(model).double()
    rotary = exact.model.rotary_emb
    ropes = rope_xp.from_hf_config(model.config)

    def truth(x, position_ids, layer_type=None):
        rope = ropes[layer_type] if isinstance(ropes, dict) else ropes
        r = rope.rotary_dim or 16
        frequencies = rope.base ** -(torch.arange(0, r, 2) / r).double()
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(rotary, "forward", truth)
    positions = 1_000_000 + torch.arange(24)[None]
    expected = logits(exact, position_ids=positions)
    theirs = (logits(model, position_ids=positions) - expected).abs().max()
    ours = (logits(patch(model), position_ids=positions) - expected).abs().max()
    # Float32 angles near a million are wrong by up to 0.06; ours leave the model's own rounding.
    assert ours < LOGITS
    assert theirs > 50 * ours


def test_a_model_in_float64_gets_tables_in_float64():
    model = make("llama")
    single, before = logits(model), logits(model.double())
    double = logits(patch(model))
    torch.testing.assert_close(double, before, rtol=0, atol=LOGITS)  # its frequencies are float32
    cos, _ = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(9)[None])
    angles = torch.arange(9)[:, None] * 1e4 ** -(torch.arange(0, 16, 2) / 16).double()
    # float64 angles below 9, and cos
    torch.testing.assert_close(cos[0, :, :8], angles.cos(), rtol=0, atol=4e-15)
    assert (double - single).abs().max() < LOGITS


def test_unusual_calls_are_left_to_the_model_in_the_dtype_of_q():
    function, ours = replaced("deepseek_v3", "halves", "apply_rotary_pos_emb_interleave")
    q, tables = torch.randn(2, 3, 5, 8).bfloat16(), torch.randn(2, 2, 5, 8)
    for options in ({}, {"position_ids": torch.arange(5)}, {"unsqueeze_dim": 1}):
        for y in ours(q, q, *tables, **options):
            assert y.dtype == torch.bfloat16
            # the model's function in float32, rounded once
            expected = function(q.float(), q.float(), *tables)[0].bfloat16()
            assert torch.equal(y, expected)


@pytest.mark.parametrize(
    ("kind", "form", "width"),
    [("llama", "halves", 8), ("cohere", "neighbours", 8), ("gpt_oss", "pairs", 4)],
)
def test_calls_of_a_kind_read_the_tables_that_they_are_given(kind, form, width):
    """Without gradients such a call is bound, with them it is not."""
    _, ours = replaced(kind, form)
    shapes = (2, 3, 5, 8), (2, 5, 3, 8), (1, 3, 5, 8)
    for _ in range(3):
        for shape, dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
            q, k = torch.randn(2, *shape).to(dtype)
            named = {"unsqueeze_dim": 2} if shape[1] == 5 else {}
            wide = torch.randn(2, shape[0], 5, 2 * width)
            for tables in (
                wide[..., :width].contiguous(),
                wide[..., :width],
                wide[:, :1, :, width:],
            ):
                expected = ours(q, k, *tables, **named)
                with torch.no_grad():
                    got = ours(q, k, *tables, **named)
                assert all(map(torch.equal, got, expected))
                with torch.no_grad():
                    other = ours(q, k, *(2 * tables), **named)
                assert not any(map(torch.equal, other, expected))


def test_arrays_of_other_libraries_are_rotated_by_their_own_columns():
    _, ours = replaced("llama", "halves")
    q, tables = torch.randn(2, 3, 5, 8), torch.randn(2, 2, 5, 8)
    expected = ours(q, q, *tables)
    for array in (np.asarray, pytest.importorskip("jax.numpy").asarray):
        with torch.no_grad():
            for _ in range(3):
                for y, e in zip(ours(*map(array, (q, q, *tables))), expected, strict=True):
                    # two products and a sum of numbers below 5, which XLA may fuse
                    np.testing.assert_allclose(np.asarray(y), e, rtol=0, atol=4e-6)


@pytest.mark.parametrize("recorded", [False, True])
def test_arguments_that_the_models_function_does_not_take(recorded):
    _, ours = replaced("llama", "halves")
    q, (cos, sin) = torch.ones(1, 2, 3, 8), torch.ones(2, 1, 3, 8)
    with torch.set_grad_enabled(recorded):
        assert ours(q, q, cos, sin=sin, unsqueeze_dim=1)[0].shape == q.shape
        for arguments in ((), (q,), (q, q), (q, q, cos)):
            with pytest.raises(TypeError, match="missing"):
                ours(*arguments, unsqueeze_dim=1)
        for extra, named in (((1, None), {}), ((), {"scale": None}), ((), {"q": q})):
            with pytest.raises(TypeError):
                ours(q, q, cos, sin, *extra, **named)


def test_casting_the_model_does_not_round_the_frequencies():
    """model.to(bfloat16) rounds inv_freq as well, and angles of far tokens drift apart."""
    positions = 40 * torch.arange(24)[None]
    exact = logits(make("llama"), position_ids=positions)
    half = make("llama").to(torch.bfloat16)
    theirs = (logits(half, position_ids=positions).float() - exact).abs().mean()
    after = logits(patch(half), position_ids=positions)
    assert after.dtype == torch.bfloat16
    assert (after.float() - exact).abs().mean() < 0.5 * theirs


def test_other_models_of_the_type_are_not_touched():
    model, other = make("llama"), make("llama")
    keys = list(model.state_dict())
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    function = module.apply_rotary_pos_emb
    assert list(patch(model).state_dict()) == keys
    assert module.apply_rotary_pos_emb is function
    assert not any(map(is_patched, other.modules()))
    unpatch(model)
    assert not any(map(is_patched, model.modules()))
    assert "rope_xp_plans" not in vars(model.model.rotary_emb)


def test_a_length_fixes_rules_that_depend_on_it():
    model = make("phi3")
    short = logits(model, TOKENS[:, :16])
    patch(model, length=64)
    long = logits(model, TOKENS[:, :16])
    assert (short - long).abs().max() > 0.01
    rope = model.model.rotary_emb.rope_xp_plans[None].rope
    assert rope.scaling.length == 64


@pytest.mark.parametrize(
    "name", ["_drop_in", "_diffusion.config", "diffusers", "kernels", "transformers"]
)
def test_examples(name):
    pytest.importorskip("numpy" if name.startswith("_") else name)
    results = doctest.testmod(importlib.import_module(f"rope_xp.integrations.{name}"))
    assert results.attempted > 3
    assert results.failed == 0
