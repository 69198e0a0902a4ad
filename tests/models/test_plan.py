"""rope_xp.plan against models of the installed transformers, see support/plans.py."""

import copy
import importlib
import importlib.util
import inspect
import json

import numpy as np
import pytest
from support import (
    plans,  # first, as it skips this module where torch or transformers is missing
    small_models,
)
from support.inspected import REAL

import rope_xp
from rope_xp import RopeConfigError
from rope_xp.__main__ import main
from rope_xp.hf import _attention, _models, _parts, _plan

torch, transformers = plans.torch, plans.transformers

# Two norms and two bases, NoPE by layer, latent attention, indexers, heads of two widths, layers
# without attention, M-RoPE, a norm over all heads. test_census.py has all of transformers.
SHORT = "gemma3 llama4 deepseek_v3 deepseek_v32 gemma4 qwen3_next qwen2_vl olmo2"


@pytest.mark.parametrize("directory", SHORT.split())
def test_plan_is_what_the_model_does(directory):
    assert plans.list_equal(directory)


def test_facts_of_attention_are_of_known_models():
    assert set(_attention.ATTENTION) <= set(_models.MODELS)


# --- what a file leaves out ----------------------------------------------------------------------


@pytest.fixture
def no_transformers(monkeypatch):
    find = importlib.util.find_spec
    hide = lambda name, *rest: None if name == "transformers" else find(name, *rest)  # noqa: E731  # short
    monkeypatch.setattr(importlib.util, "find_spec", hide)


def test_plan_of_a_sparse_file_has_the_defaults_of_its_class():
    """gemma-3-4b-it has a text_config of six keys."""
    layers = rope_xp.plan(REAL["gemma_3_4b"])
    text = transformers.Gemma3TextConfig(**REAL["gemma_3_4b"]["text_config"])
    assert layers == rope_xp.plan(text)
    assert [layer.kind for layer in layers] == text.layer_types
    assert layers[0].head_dim == 256


LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 8}
LLAMA |= {"hidden_size": 4096, "num_attention_heads": 32, "rms_norm_eps": 1e-6}


def test_plan_of_a_file_of_gemma_4_is_that_of_its_class():
    """The class has the heads of each layer, and the file those of two kinds of layers."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
    wide = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 96}
    keys = {**LLAMA, **layers, **wide, "model_type": "gemma4_text", "head_dim": 64}
    plan = rope_xp.plan(keys)
    assert plan == rope_xp.plan(transformers.Gemma4TextConfig(**keys))
    assert [(x.kv_heads, x.head_dim) for x in plan] == [(8, 64), (1, 96)]


@pytest.mark.usefixtures("no_transformers")
def test_plan_without_transformers_needs_a_file_that_says_all():
    for config in (LLAMA, {**LLAMA, "model_type": "qwen3", "hidden_size": 2048}):
        assert [layer.head_dim for layer in rope_xp.plan(config)] == [128] * 2
    with pytest.raises(RopeConfigError, match="is missing, and a plan needs it; add it, or inst"):
        rope_xp.plan(REAL["gemma_3_4b"])


def test_plan_of_an_unknown_type_asks_for_the_key_alone():
    unknown = {**LLAMA, "model_type": "yi", "rope_theta": 5e6}
    assert rope_xp.plan(unknown, layout="half")[0].head_dim == 128
    del unknown["num_attention_heads"]
    with pytest.raises(RopeConfigError, match="head_dim is missing, and a plan needs it$"):
        rope_xp.plan(unknown, layout="half")


@pytest.mark.slow
def test_plan_derives_the_head_dim_that_every_class_fills_in():
    compared = 0
    for model_type, kind in transformers.CONFIG_MAPPING.items():
        row = _models.get_row(model_type)
        if row is None or row.axial:
            continue
        try:
            part = dict(_parts.find_part(kind().to_dict()))
            for key in ("head_dim", "attention_head_dim"):
                part.pop(key, None)
            for width in {"hidden_size", "d_model", "n_embd"} & {*part}:
                part[width] = int(part[width]) * 2
            filled = _plan.find_class(part).from_dict(copy.deepcopy(part)).to_dict()
        except Exception:  # noqa: BLE001  # of a class that takes no other width
            continue
        try:
            expected = rope_xp.plan(filled)
        except rope_xp.RopeConfigError:  # it has no plan
            continue
        layers = rope_xp.plan(part)
        assert [x.head_dim for x in layers] == [x.head_dim for x in expected], model_type
        compared += 1
    assert compared > 100


@pytest.mark.slow
@pytest.mark.usefixtures("no_transformers")
def test_plan_does_not_guess_which_layers_have_no_attention():
    """Where a class has them by default, a file must say which they are."""
    keys, refused = ("layer_types", "layers_block_type", "block_types"), 0
    for model_type in transformers.CONFIG_MAPPING:
        row = _models.get_row(model_type)
        if row is None or row.rotary_if is not None or row.axial:
            continue
        config = transformers.CONFIG_MAPPING[model_type]().to_dict()
        words = {word for key in keys for word in config.pop(key, None) or ()}
        if not words.isdisjoint(_plan._NO_ATTENTION):
            config["head_dim"] = config.get("head_dim") or 64
            with pytest.raises(RopeConfigError, match="|".join((*keys, "mrope_section"))):
                rope_xp.plan(config)
            refused += 1
    assert refused > 5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_hidden_layers": "x"}, "num_hidden_layers must be"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be at most 16384"),
        ({"num_attention_heads": 0}, "num_attention_heads must be"),
        ({"num_key_value_heads": 1.5}, "num_key_value_heads must be"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must list 32 layers; got 3"),
        (
            {"model_type": "gemma3_text", "layer_types": ["odd_attention"] * 32},
            "'odd_attention', and rotary parameters are for",
        ),
    ],
)
def test_plan_names_impossible_values(more, message):
    with pytest.raises(RopeConfigError, match=message):
        rope_xp.plan({**LLAMA, "num_hidden_layers": 32, "head_dim": 128, **more})


@pytest.mark.parametrize("name", ["gemma_3_4b", "zaya"])
def test_inspect_reports_the_plan_or_why_there_is_none(name, capsys, tmp_path):
    zaya = {"model_type": "zaya", "head_dim": 64, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(REAL.get(name, zaya)))
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    if name == "zaya":
        assert report["plan"] is None
        assert report["no_plan"].startswith("no plan of model_type 'zaya': its norm")
    else:
        _, full = report["plan"]
        assert (full["layers"], full["norm"]["offset"]) == ([5, 11, 17, 23, 29], 1.0)
        assert report["no_plan"] is None


# --- the temperature of q, and indexers ----------------------------------------------------------


@pytest.mark.parametrize("model_type", ["ministral3", "mistral4"])
def test_query_factors_are_those_of_ministral(model_type):
    config = transformers.CONFIG_MAPPING[model_type]()
    file = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    positions = torch.tensor([[0, 1, 8191, 8192, 16383, 16384, 16385, 500_000]])
    rule = config.rope_parameters
    beta, length = rule["llama_4_scaling_beta"], rule["original_max_position_embeddings"]
    theirs = file.get_llama_4_attn_scale(positions, beta, length)[:, 0, :, 0]
    assert (theirs.max() > 1.1) & (theirs.min() == 1)
    for layer in rope_xp.plan(config):
        np.testing.assert_allclose(layer.query_factors(positions.numpy()), theirs, rtol=1e-6)


def test_query_factors_are_those_of_llama_4():
    """The queries of layers with and without the temperature differ by its factors."""
    queries = {False: {}, True: {}}

    def see(module, q, k, v, *_, **__):
        queries[module.config.attn_temperature_tuning].setdefault(module.layer_idx, q)
        return torch.zeros(q.shape).transpose(1, 2), None

    plans.modeling.ALL_ATTENTION_FUNCTIONS.register("see_queries", see)
    more = {"num_hidden_layers": 4, "floor_scale": 4, "attn_scale": 0.3}
    for tuned in queries:
        model = small_models.make("llama4_text", **more, attn_temperature_tuning=tuned)
        model.set_attn_implementation("see_queries")
        with torch.no_grad():
            model(torch.arange(1, 21)[None])
    layers = rope_xp.plan(model.config)
    assert [layer.rope is None for layer in layers] == [False, False, False, True]
    for i, layer in enumerate(layers):
        factors = torch.tensor(layer.query_factors(np.arange(20)))[:, None].float()
        torch.testing.assert_close(queries[True][i], queries[False][i] * factors)
    assert factors.max() > 1.4


class _Cache:
    """A cache that keeps what an indexer stores."""

    def update_indexer(self, k, _):
        self.k = k
        return k


@pytest.mark.parametrize(
    "model_type", ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "dots3_note_text"]
)
def test_rope_of_an_indexer_rotates_as_the_model(model_type):
    """The key that an indexer stores is its normalized one, rotated by the plan's rope."""
    config = transformers.CONFIG_MAPPING[model_type](
        hidden_size=64, index_head_dim=48, index_n_heads=2, qk_rope_head_dim=16, q_lora_rank=32
    )
    file = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    (name,) = [n for n in vars(file) if n.endswith("Indexer")]
    torch.manual_seed(0)
    own = getattr(config, "per_layer_config", None)
    indexer = getattr(file, name)(own[0] if own else config, 0)
    normalized, cache = [], _Cache()
    indexer.k_norm.register_forward_hook(lambda *a: normalized.append(a[-1]))
    layer = next(layer for layer in rope_xp.plan(config) if layer.indexer is not None)
    positions = torch.arange(40, 46)
    tables = [torch.cat([x, x], dim=-1)[None] for x in layer.rope.cos_sin(positions, 16)]
    arguments = (torch.randn(1, 6, 64), torch.randn(1, 6, 32), tables, torch.zeros(1, 6, 6))
    accepted = len(inspect.signature(indexer.forward).parameters)
    indexer(*arguments, *[positions[None]] * (accepted - 5), cache)
    ours = layer.indexer.rope.rotate(normalized[0], positions.numpy(), axes="bsd")
    torch.testing.assert_close(ours, cache.k.reshape(ours.shape), atol=1e-5, rtol=0)
    assert (layer.indexer.heads, layer.indexer.head_dim) == (2, 48)


@pytest.mark.parametrize(
    "more",
    [
        {"multi_query": True},
        {"multi_query": False, "num_kv_heads": 4},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"alibi": False},
    ],
)
def test_plan_has_the_heads_of_falcon(more):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 8}
    config = transformers.FalconConfig(**sizes, **more)
    attention = transformers.FalconModel(config).h[0].self_attention
    (layer,) = rope_xp.plan(config)
    theirs = attention.num_heads, attention.num_kv_heads, attention.head_dim
    assert (layer.heads, layer.kv_heads, layer.head_dim) == theirs
