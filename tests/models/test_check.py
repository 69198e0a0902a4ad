"""check(): faults of the angles of a model are found, by their kinds, and nothing else is."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.patched import LOGITS, logits, modeling
from support.small_models import make, vision_language

from rope_xp import RoPE, RopeError, from_hf_config
from rope_xp.integrations.transformers import check, patch, unpatch


def buffer(change):
    def change_buffer(model):
        rotary = model.model.rotary_emb
        rotary.inv_freq = change(rotary.inv_freq.clone())

    return change_buffer


def forward(compute, *, of_instance=False):
    """Return a change to a class of its own, or an instance, whose forward computes otherwise."""

    def run(self, x, position_ids):
        angles = compute(position_ids[..., None], self.inv_freq).float()
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def change_forward(model):
        rotary, kind = model.model.rotary_emb, type(model.model.rotary_emb)
        if of_instance:
            rotary.forward = run.__get__(rotary)
        else:
            rotary.__class__ = type(kind.__name__, (kind,), {"forward": run})

    return change_forward


def in_bfloat16(positions, frequencies):
    return positions.bfloat16() * frequencies.bfloat16()


def by_matmul(positions, frequencies):
    return positions.float() @ frequencies[None, None].expand(len(positions), 1, -1)


def scale(model):
    model.model.rotary_emb.attention_scaling = 1.25


# Kind, what breaks a small Llama, words of the sentence.
BROKEN = {
    "zeros": ("zero", buffer(torch.zeros_like), "nothing is rotated"),
    "nan": ("not finite", buffer(lambda w: w * torch.nan), "not finite"),
    "random": ("uninitialised", buffer(torch.randn_like), "cannot be freq"),
    "bits": ("uninitialised", buffer(lambda w: torch.full_like(w, 3e-38)), "cannot be freq"),
    "huge": ("uninitialised", buffer(lambda w: w * 1e30), "cannot be freq"),
    "bfloat16": ("cast", lambda model: model.bfloat16(), "cast to bfloat16"),
    "float16": ("cast", lambda model: model.half(), "cast to float16"),
    "and back": ("rounded", lambda model: model.bfloat16().float(), "rounded to bfloat16"),
    "base": ("unlike the configuration", buffer(lambda w: w**2), "of base 1e+08"),
    "factor": ("unlike the configuration", buffer(lambda w: w / 4), "Linear(factor=4.0)"),
    "length": ("unlike the configuration", buffer(lambda w: w[:4]), "the configuration says"),
    "scaling": ("attention factor", scale, "attention_scaling is 1.25"),
    "angles": ("angles", forward(in_bfloat16, of_instance=True), "computed in bfloat16"),
    "off by one": ("angles", forward(lambda p, w: (p + 1) * w), "off from position 0 on"),
    "a class in bfloat16": ("angles", forward(in_bfloat16), "computed in bfloat16"),
    "autocast": ("autocast", forward(by_matmul), "autocast to bfloat16 reaches the angles"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_check_names_what_is_broken(name):
    kind, break_model, sentence = BROKEN[name]
    model = make("llama")
    break_model(model)
    (finding,) = check(model)
    assert finding.kind == kind
    assert sentence in finding.what
    assert f"off by {finding.effect[4097]:.2g} at position 4097" in str(finding)
    assert finding.module.startswith("model.rotary_emb")
    assert set(finding.effect or ()) == {4097, 131_071}
    assert finding.fix
    if name == "bfloat16":
        exact, cast = 10000.0 ** (-np.arange(8) / 8), model.model.rotary_emb.inv_freq.double()
        for p, error in (finding.effect or {}).items():
            turns = np.exp(1j * p * cast.numpy()) - np.exp(1j * p * exact)
            assert error == pytest.approx(np.abs(turns).max())


@pytest.mark.parametrize("name", ["zeros", "bfloat16", "and back", "base", "autocast"])
def test_patch_that_trusts_the_configuration_repairs_buffers(name):
    model, right = make("llama"), make("llama")
    BROKEN[name][1](model)
    model.float().load_state_dict(right.state_dict())  # which holds no frequencies
    with pytest.raises(RopeError, match="trust must be 'both' or 'config'; got 'buffers'"):
        patch(model, trust="buffers")
    patch(model, trust="config")
    assert check(model) == ()
    torch.testing.assert_close(logits(model), logits(patch(right)), rtol=0, atol=LOGITS)
    restored = model.model.rotary_emb.inv_freq
    expected = from_hf_config(model.config).frequencies(16)
    np.testing.assert_allclose(restored.double().numpy(), expected, rtol=1e-7)
    if name != "autocast":
        assert check(unpatch(model)) == ()


# --- configurations ------------------------------------------------------------------------------

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}


def kinds(model):
    return [(finding.severity, finding.kind) for finding in check(model)]


@pytest.mark.parametrize(
    ("parameters", "expected", "sentence"),
    [
        (DYNAMIC, [("warning", "two regimes")], ""),
        (YARN, [("warning", "missing key")], "original_max_position_embeddings is 256"),
        ({**YARN, "original_max_position_embeddings": 64}, [], ""),
    ],
)
def test_check_finds_what_a_configuration_lacks(parameters, expected, sentence):
    model = make("llama", rope_parameters=parameters)
    assert kinds(model) == expected
    assert all(sentence in finding.what for finding in check(model))
    model.generation_config.cache_implementation = "static"
    static = [("error", "static cache")] if parameters is DYNAMIC else expected
    assert kinds(model) == static


def test_check_finds_a_function_of_another_layout(monkeypatch):
    interleaved = modeling("deepseek_v3").apply_rotary_pos_emb_interleave
    monkeypatch.setattr(modeling("llama"), "apply_rotary_pos_emb", interleaved)
    (finding,) = check(make("llama"))
    assert (finding.severity, finding.kind) == ("error", "layout")
    assert "model_type 'llama' are for halves" in finding.what


def test_check_takes_an_indexer_with_a_layout_of_its_own(monkeypatch):
    """Where its attention has another layout too, that is found."""
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model("axk2"))
    assert [f.kind for f in check(model) if f.kind != "meta"] == []
    theirs = modeling("axk2")
    monkeypatch.setattr(theirs, "apply_rotary_pos_emb_interleave", theirs.apply_rotary_pos_emb)
    assert [f.kind for f in check(model) if f.kind != "meta"] == ["layout"]


def test_check_finds_frequencies_on_meta_and_uninitialised():
    config = make("llama").config
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert kinds(model) == [("warning", "meta")]
    assert check(model)[0].module == "model.rotary_emb.inv_freq"
    model.to_empty(device="cpu")
    model.model.rotary_emb.inv_freq.fill_(7.5e8)  # as such memory may hold
    assert kinds(model) == [("error", "uninitialised")]


# --- other modules -------------------------------------------------------------------------------


def hold(**attributes):
    module = torch.nn.Module()
    module.inner = torch.nn.Module()
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            module.inner.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("inv_freq", 1e4 ** -torch.linspace(0, 1, 8), None),
        ("inv_freq", torch.zeros(8), "zero"),
        ("inv_freq", torch.ones(8).bfloat16(), "cast"),
        ("inv_freq", -torch.ones(8), "uninitialised"),
        ("cos_cached", torch.ones(8, 4), None),
        ("cos_cached", torch.ones(8, 4).bfloat16(), "tables cast"),
        ("cos_sin_cache", torch.ones(8, 4) * torch.inf, "not finite"),
        ("freqs_cis", torch.ones(8, 4) * 1j, None),
        ("freqs_cis", torch.ones(8, 4) * 1j * torch.nan, "not finite"),
    ],
)
def test_check_of_modules_without_a_configuration_reads_their_buffers(name, value, kind):
    findings = [(finding.module, finding.kind) for finding in check(hold(**{name: value}))]
    assert findings == ([(f"inner.{name}", kind)] if kind else [])


def test_check_compares_ropes_that_modules_hold():
    model = make("llama")
    model.extra = hold(rope=from_hf_config(model.config))
    assert check(model) == ()
    model.extra = hold(rope=RoPE(layout="half", base=5e5))
    (finding,) = check(model)
    assert (finding.severity, finding.module) == ("error", "extra")
    assert finding.kind == "unlike the configuration"
    assert check(hold(rope=RoPE())) == ()


# --- no false alarm ------------------------------------------------------------------------------

EXPECTED = {"phi3": ["two regimes"]}


@pytest.mark.parametrize("model_type", ["qwen2_vl", "gemma4_text", "deepseek_v3", "phi3"])
def test_check_of_a_model_that_is_right_finds_and_changes_nothing(model_type):
    model = vision_language()[0] if model_type == "qwen2_vl" else make(model_type)
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert [f.kind for f in check(model)] == EXPECTED.get(model_type, [])
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name])


LLAMA = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
SCALINGS = {
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    },
}


@pytest.mark.parametrize("rope_type", SCALINGS)
def test_advice_of_check_can_be_followed_where_attention_factors_differ(rope_type):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rope_theta=5e5)).eval()
    model.config.rope_parameters.update({"rope_type": rope_type, **SCALINGS[rope_type]})
    built = transformers.LlamaForCausalLM(model.config).eval()
    built.load_state_dict(model.state_dict())
    assert any("trust='config'" in finding.fix for finding in check(model))
    patched = patch(model, trust="config")
    assert {finding.kind for finding in check(patched)} <= {"two regimes"}
    torch.testing.assert_close(logits(patched), logits(built), rtol=0, atol=LOGITS)


@pytest.mark.parametrize("implementation", [None, "static"])
def test_check_asks_for_no_length_that_patch_has_fixed(implementation):
    keys = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    sizes = LLAMA | {"max_position_embeddings": 64}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, rope_parameters=keys))
    model.generation_config.cache_implementation = implementation
    assert len(check(model)) == 1
    assert check(patch(model, length=128)) == ()


def test_check_says_that_a_configuration_could_not_be_read():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rope_theta=5e5))
    with pytest.warns(FutureWarning, match="rope_scaling"):
        model.config.rope_scaling = {"rope_type": "linear", "factor": 4.0}
    (finding,) = check(model)
    assert (finding.kind, finding.severity) == ("not checked", "error")
    assert "rope_parameters.rope_theta is null" in finding.what


def test_check_says_that_it_does_not_know_a_model_type():
    unknown = type("Unknown", (transformers.LlamaConfig,), {"model_type": "unknown"})
    rotary = modeling("llama").LlamaRotaryEmbedding(unknown(**LLAMA))
    (finding,) = check(rotary)
    assert (finding.kind, finding.severity) == ("not checked", "warning")
    assert "'unknown' is not known" in finding.what
