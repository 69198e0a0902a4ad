"""apply_rotary_transformers in place of the functions of transformers."""

import functools

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.patched import modeling

from rope_xp import RopeError
from rope_xp.integrations import apply_rotary_transformers

# Options that the tables of a model do not determine.
OPTIONS = {
    "glm": {"layout": "interleaved"},
    "gpt_oss": {"layout": "half", "columns": "pairs"},
    "deepseek_v3": {"layout": "interleaved_to_half"},
}


def arrays(name, r=16):
    """Return q, k, cos and sin, with columns as in the tables of a model."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4, 6, 16)), rng.standard_normal((2, 2, 6, 16))
    angles = rng.uniform(0, 6, (2, 6, r // 2))
    columns = {"cohere": np.arange(r) // 2, "gpt_oss": np.arange(r // 2)}
    angles = angles[..., columns.get(name, np.arange(r) % (r // 2))]
    return [torch.from_numpy(x.astype(np.float32)) for x in (q, k, np.cos(angles), np.sin(angles))]


@pytest.mark.parametrize(
    ("name", "r"),
    [
        *(("llama", 16), ("gpt_neox", 8), ("cohere", 16)),
        *(("glm", 8), ("gpt_oss", 16), ("deepseek_v3", 16)),
    ],
)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2, -3, -2])
def test_apply_rotary_transformers_rotates_as_the_models_function(name, r, unsqueeze_dim):
    q, k, cos, sin = arrays(name, r)
    function = "apply_rotary_pos_emb" + "_interleave" * (name == "deepseek_v3")
    if unsqueeze_dim in (2, -2):
        q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
    q.requires_grad_()
    expected = getattr(modeling(name), function)(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    rotated = apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim, **OPTIONS.get(name, {}))
    # Two products and a sum of numbers below 6, each rounded.
    torch.testing.assert_close(rotated, expected, rtol=0, atol=2e-6)
    gradients = [torch.autograd.grad(y.sin().sum(), q) for y, _ in (rotated, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


def test_apply_rotary_transformers_without_k_rotates_q_alone():
    q, k, cos, sin = arrays("llama")
    alone, none = apply_rotary_transformers(q, None, cos, sin)
    assert none is None
    assert torch.equal(alone, apply_rotary_transformers(q, k, cos, sin)[0])


@pytest.mark.parametrize("batch", [np.s_[:1], 0])
def test_apply_rotary_transformers_takes_tables_of_one_batch_or_of_none(batch):
    q, k, *tables = arrays("llama")
    tables = [t[batch] for t in tables]
    place = tables[0].ndim - 2
    expected = modeling("llama").apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=place)
    rotated = apply_rotary_transformers(q, k, *tables, place)
    torch.testing.assert_close(rotated, expected, rtol=0, atol=2e-6)


def test_apply_rotary_transformers_of_bfloat16_rounds_once():
    narrow = [x.bfloat16() for x in arrays("llama")]
    wide = apply_rotary_transformers(*(x.float() for x in narrow))
    assert all(map(torch.equal, apply_rotary_transformers(*narrow), (x.bfloat16() for x in wide)))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_apply_rotary_transformers_compiles_when_told_the_columns(library):
    told = functools.partial(apply_rotary_transformers, columns="neighbours")
    q_k_cos_sin = arrays("cohere")
    if library == "torch":
        torch._dynamo.reset()
        compile_ = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    else:
        jax = pytest.importorskip("jax")
        compile_, q_k_cos_sin = jax.jit, [jax.numpy.asarray(x.numpy()) for x in q_k_cos_sin]
    for ours, expected in zip(compile_(told)(*q_k_cos_sin), told(*q_k_cos_sin), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)  # fused otherwise
    with pytest.raises(Exception, match="while a compiler traces the call"):
        compile_(apply_rotary_transformers)(*q_k_cos_sin)


@pytest.mark.parametrize(
    ("message", "width", "options"),
    [
        ("no two equal columns for a pair.*columns='pairs'", 7, {}),
        ("no two equal columns for a pair.*columns='pairs'", 8, {}),
        ("columns='pairs' fits both layouts; pass", 8, {"columns": "pairs"}),
        ("columns must be one of 'halves', .*; got 'half'", 16, {"columns": "half"}),
        ("columns='halves' needs an even number; cos has 7", 7, {"columns": "halves"}),
        ("unsqueeze_dim=0 puts no axis for heads next to", 16, {"unsqueeze_dim": 0}),
        ("layout must be one of", 16, {"layout": "llama"}),
        ("must have one shape; got .2, 6, 16. and .2, 3, 16.", 16, {"sin": torch.ones(2, 3, 16)}),
        ("8", 16, {"q": torch.ones(2, 4, 6, 8)}),
    ],
)
def test_apply_rotary_transformers_refuses_what_does_not_fit(message, width, options):
    q, k, *tables = arrays("llama")
    call = dict(zip(("cos", "sin"), (t[..., :width] for t in tables), strict=True))
    with pytest.raises(RopeError, match=message):
        apply_rotary_transformers(**{"q": q, "k": k, **call, **options})
