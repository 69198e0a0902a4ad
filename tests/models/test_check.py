"""check(): faults of the angles of a model are found, by their kinds, and nothing else is."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.patched import LOGITS, logits, modeling
from support.small_models import make, vision_language

from rope_xp import RopeError, from_hf_config
from rope_xp.integrations.transformers import check, patch, unpatch


def kinds(model):
    return [(finding.severity, finding.kind) for finding in check(model)]


# --- buffers and code of a small Llama -----------------------------------------------------------


def buffer(change):
    def change_buffer(model):
        rotary = model.model.rotary_emb
        rotary.inv_freq = change(rotary.inv_freq.clone())

    return change_buffer


def forward(compute):
    """Return a change to a class of its own, whose forward computes angles otherwise."""

    def run(self, x, position_ids):
        angles = compute(position_ids[..., None], self.inv_freq).float()
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def change_forward(model):
        rotary, kind = model.model.rotary_emb, type(model.model.rotary_emb)
        rotary.__class__ = type(kind.__name__, (kind,), {"forward": run})

    return change_forward


def by_matmul(positions, frequencies):
    return positions.float() @ frequencies[None, None].expand(len(positions), 1, -1)


# Kind, what breaks the model, words of the sentence.
BROKEN = {
    "zeros": ("zero", buffer(torch.zeros_like), "nothing is rotated"),
    "nan": ("not finite", buffer(lambda w: w * torch.nan), "not finite"),
    "negative": ("uninitialised", buffer(lambda w: -w), "cannot be freq"),
    "bits": ("uninitialised", buffer(lambda w: torch.full_like(w, 3e-38)), "cannot be freq"),
    "huge": ("uninitialised", buffer(lambda w: w * 1e30), "cannot be freq"),
    "bfloat16": ("cast", lambda model: model.bfloat16(), "cast to bfloat16"),
    "and back": ("rounded", lambda model: model.bfloat16().float(), "rounded to bfloat16"),
    "base": ("unlike the configuration", buffer(lambda w: w**2), "of base 1e+08"),
    "factor": ("unlike the configuration", buffer(lambda w: w / 4), "Linear(factor=4.0)"),
    "length": ("unlike the configuration", buffer(lambda w: w[:4]), "the configuration says"),
    "scaling": (
        "attention factor",
        lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.25),
        "attention_scaling is 1.25",
    ),
    "off by one": ("angles", forward(lambda p, w: (p + 1) * w), "off from position 0 on"),
    "angles": ("angles", forward(lambda p, w: p.bfloat16() * w.bfloat16()), "in bfloat16"),
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
    assert set(finding.effect) == {4097, 131_071}
    assert finding.fix


def test_check_computes_the_effect_of_a_cast_by_the_largest_error_of_a_turn():
    model = make("llama").bfloat16()
    exact, cast = 10000.0 ** (-np.arange(8) / 8), model.model.rotary_emb.inv_freq.double().numpy()
    for p, error in check(model)[0].effect.items():
        turns = np.exp(1j * p * cast) - np.exp(1j * p * exact)
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


def test_check_finds_frequencies_on_meta_and_uninitialised():
    with torch.device("meta"):
        model = make("llama")
    assert kinds(model) == [("warning", "meta")]
    assert check(model)[0].module == "model.rotary_emb.inv_freq"
    model.to_empty(device="cpu")
    model.model.rotary_emb.inv_freq.fill_(7.5e8)  # as such memory may hold
    assert kinds(model) == [("error", "uninitialised")]


# --- functions that rotate -----------------------------------------------------------------------


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
    assert {kind for _, kind in kinds(model)} == {"meta"}
    theirs = modeling("axk2")
    monkeypatch.setattr(theirs, "apply_rotary_pos_emb_interleave", theirs.apply_rotary_pos_emb)
    assert {kind for _, kind in kinds(model)} == {"meta", "layout"}


# --- configurations ------------------------------------------------------------------------------

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
TRAINED = {"original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONGROPE |= {"factor": 4.0, "rope_theta": 10000.0, **TRAINED}
UNSTATED = {k: v for k, v in LONGROPE.items() if k not in ("factor", *TRAINED)}


@pytest.mark.parametrize(
    ("parameters", "expected", "sentence"),
    [
        (DYNAMIC, [("warning", "two regimes")], ""),
        (YARN, [("warning", "missing key")], "original_max_position_embeddings is 256"),
        (YARN | TRAINED, [], ""),
        (UNSTATED, [("warning", "missing key"), ("warning", "two regimes")], ""),
    ],
)
def test_check_finds_what_a_configuration_lacks(parameters, expected, sentence):
    model = make("llama", rope_parameters=parameters)
    assert kinds(model) == expected
    assert all(sentence in finding.what for finding in check(model))
    model.generation_config.cache_implementation = "static"
    static = {("error", "static cache") if k == "two regimes" else (s, k) for s, k in expected}
    assert set(kinds(model)) == static
    assert parameters is not DYNAMIC or check(patch(model, length=512)) == ()


@pytest.mark.parametrize("parameters", [YARN | TRAINED, LONGROPE])
def test_advice_of_check_can_be_followed_where_attention_factors_differ(parameters):
    model, built = make("llama"), make("llama", rope_parameters=parameters)
    model.config.rope_parameters.update(parameters)
    assert any("trust='config'" in finding.fix for finding in check(model))
    patch(model, trust="config")
    torch.testing.assert_close(logits(model), logits(built), rtol=0, atol=LOGITS)
    assert {kind for _, kind in kinds(model)} <= {"two regimes"}
    assert ("error", "attention factor") not in kinds(unpatch(model))


def test_check_says_that_a_configuration_could_not_be_read():
    model = make("llama")
    with pytest.warns(FutureWarning, match="rope_scaling"):
        model.config.rope_scaling = {"rope_type": "linear", "factor": 4.0}
    (finding,) = check(model)
    assert (finding.kind, finding.severity) == ("not checked", "error")
    assert "rope_parameters.rope_theta is null" in finding.what


def test_check_says_that_it_does_not_know_a_model_type():
    unknown = type("Unknown", (transformers.LlamaConfig,), {"model_type": "unknown"})
    (finding,) = check(modeling("llama").LlamaRotaryEmbedding(unknown()))
    assert (finding.kind, finding.severity) == ("not checked", "warning")
    assert "'unknown' is not known" in finding.what


# --- other modules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("inv_freq", 1e4 ** -torch.linspace(0, 1, 8), None),
        ("inv_freq", torch.ones(8).half(), "cast"),
        ("inv_freq", -torch.ones(8), "uninitialised"),
        ("cos_cached", torch.ones(8, 4), None),
        ("cos_cached", torch.ones(8, 4).bfloat16(), "tables cast"),
        ("cos_sin_cache", torch.ones(8, 4) * torch.inf, "not finite"),
        ("freqs_cis", torch.ones(8, 4) * 1j, None),
        ("freqs_cis", torch.ones(8, 4) * 1j * torch.nan, "not finite"),
    ],
)
def test_check_of_modules_without_a_configuration_reads_their_buffers(name, value, kind):
    module = torch.nn.Sequential(torch.nn.Module())
    module[0].register_buffer(name, value)
    findings = [(finding.module, finding.kind) for finding in check(module)]
    assert findings == ([(f"0.{name}", kind)] if kind else [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen2_vl", []), ("gemma4_text", []), ("deepseek_v3", []), ("phi3", ["two regimes"])],
)
def test_check_of_a_model_that_is_right_finds_and_changes_nothing(name, expected):
    model = vision_language()[0] if name == "qwen2_vl" else make(name)
    before = {key: value.clone() for key, value in model.named_buffers()}
    assert [kind for _, kind in kinds(model)] == expected
    for key, value in model.named_buffers():
        assert torch.equal(value, before[key])
