"""apply_rotary_transformers in place of the functions of transformers."""

import functools

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.patched import modeling
from support.small_models import make

from rope_xp import RopeError
from rope_xp.integrations import apply_rotary_transformers

OPTIONS = {
    "glm": {"layout": "interleaved"},
    "gpt_oss": {"layout": "half", "columns": "pairs"},
    "deepseek_v3": {"layout": "interleaved_to_half"},
}
"""Options that the tables of a model do not determine."""


def arrays(name, r=16, d=16):
    """Return q, k, cos and sin, doubled as in a model's tables, and its own function."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4, 6, d)), rng.standard_normal((2, 2, 6, d))
    angles = rng.uniform(0, 6, (2, 6, r // 2))
    double = np.repeat if name == "cohere" else lambda t, _, axis: np.concatenate([t, t], axis)
    cos, sin = (double(t, 2, axis=-1) for t in (np.cos(angles), np.sin(angles)))
    if name == "gpt_oss":
        cos, sin = np.cos(angles), np.sin(angles)
    file = modeling(name)
    return *(torch.from_numpy(x.astype(np.float32)) for x in (q, k, cos, sin)), file


NAMES = [("llama", 16), ("gpt_neox", 8), ("cohere", 16), ("glm", 8), ("gpt_oss", 16)]


@pytest.mark.parametrize(("name", "r"), [*NAMES, ("deepseek_v3", 16)])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2, -3, -2])
def test_drop_in_rotates_as_the_models_own_function(name, r, unsqueeze_dim):
    q, k, cos, sin, file = arrays(name, r)
    function = "apply_rotary_pos_emb" + "_interleave" * (name == "deepseek_v3")
    if unsqueeze_dim in (2, -2):
        q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
    q.requires_grad_()
    expected = getattr(file, function)(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    rotated = apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim, **OPTIONS.get(name, {}))
    # Two products and a sum of numbers below 6, each rounded.
    torch.testing.assert_close(rotated, expected, rtol=0, atol=2e-6)
    gradients = [torch.autograd.grad(y.sin().sum(), q) for y, _ in (rotated, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


def test_drop_in_without_k_rotates_q_alone():
    q, k, cos, sin, _ = arrays("llama")
    alone, none = apply_rotary_transformers(q, None, cos, sin)
    assert none is None
    assert torch.equal(alone, apply_rotary_transformers(q, k, cos, sin)[0])


def test_model_runs_with_the_drop_in(monkeypatch):
    file = modeling("cohere")
    model, tokens, results = make("cohere"), torch.arange(1, 13)[None], []
    for function in (file.apply_rotary_pos_emb, apply_rotary_transformers):
        monkeypatch.setattr(file, "apply_rotary_pos_emb", function)
        model.zero_grad()
        logits = model(tokens).logits
        logits.square().mean().backward()
        gradient = model.get_input_embeddings().weight.grad.clone()
        generated = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
        results.append((logits.detach(), gradient, generated))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("batch", [1, None])
def test_drop_in_takes_tables_of_one_batch_or_of_none(batch):
    q, k, cos, sin, file = arrays("llama")
    cos, sin = (t[0] if batch is None else t[:1] for t in (cos, sin))
    place = 0 if batch is None else 1
    expected = file.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=place)
    rotated = apply_rotary_transformers(q, k, cos, sin, place)
    torch.testing.assert_close(rotated, expected, rtol=0, atol=2e-6)


def test_drop_in_of_bfloat16_rounds_once():
    q, k, cos, sin, _ = arrays("llama")
    narrow = [x.bfloat16() for x in (q, k, cos, sin)]
    wide = apply_rotary_transformers(*(x.float() for x in narrow))
    assert all(map(torch.equal, apply_rotary_transformers(*narrow), (x.bfloat16() for x in wide)))


@pytest.mark.slow
def test_drop_in_compiles_when_told_the_columns():
    torch._dynamo.reset()
    q, k, cos, sin, _ = arrays("llama")
    rotate = functools.partial(apply_rotary_transformers, columns="halves")
    compiled = torch.compile(lambda *a: rotate(*a), fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(q, k, cos, sin), rotate(q, k, cos, sin)))
    blind = torch.compile(apply_rotary_transformers, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="while a compiler traces the call"):
        blind(q, k, cos, sin)


@pytest.mark.slow
def test_drop_in_jits_when_told_the_columns():
    jax = pytest.importorskip("jax")
    jax_arrays = [jax.numpy.asarray(x.numpy()) for x in arrays("cohere")[:4]]
    expected = apply_rotary_transformers(*jax_arrays)
    rotate = functools.partial(apply_rotary_transformers, columns="neighbours")
    for ours, theirs in zip(jax.jit(rotate)(*jax_arrays), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)  # fused otherwise
    with pytest.raises(RopeError, match="while a compiler traces the call"):
        jax.jit(apply_rotary_transformers)(*jax_arrays)


def test_drop_in_refuses_what_does_not_fit():
    q, k, cos, sin, _ = arrays("llama")

    def narrow(width):
        return q, k, cos[..., :width], sin[..., :width]

    cases = [
        ("must have one shape; got .2, 6, 16. and .2, 3, 16.", (q, k, cos, sin[:, :3]), {}),
        ("no two equal columns for a pair.*columns='pairs'", narrow(7), {}),
        ("no two equal columns for a pair.*columns='pairs'", narrow(8), {}),
        ("columns='pairs' fits both layouts; pass", narrow(8), {"columns": "pairs"}),
        ("columns must be one of 'halves', .*; got 'half'", narrow(16), {"columns": "half"}),
        ("columns='halves' needs an even number; cos has 7", narrow(7), {"columns": "halves"}),
        ("unsqueeze_dim=0 puts no axis for heads next to", (*narrow(16), 0), {}),
        ("layout must be one of", narrow(16), {"layout": "llama"}),
        ("8", (q[..., :8], k[..., :8], cos, sin), {}),
    ]
    for message, arguments, named in cases:
        with pytest.raises(RopeError, match=message):
            apply_rotary_transformers(*arguments, **named)
