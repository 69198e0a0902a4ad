"""rope_xp.plan against models of the installed transformers, see support/plans.py."""

import copy
import importlib
import importlib.util
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import (
    plans,  # first, as it skips this module where torch or transformers is missing
    small_models,
)
from support.cases import slow
from support.inspected import REAL

import rope_xp
from rope_xp import RopeConfigError
from rope_xp.hf import _attention, _models, _parts, _plan

torch, transformers = plans.torch, plans.transformers

# Two norms and two bases, NoPE by layer, latent attention, indexers, heads of two widths, layers
# without attention, M-RoPE, a norm over all heads.
SHORT = "gemma3 llama4 deepseek_v3 deepseek_v32 gemma4 qwen3_next qwen2_vl olmo2"
# One for each other plan, but for its sizes.
LATER = """
    afmoe apertus axk2 bamba beam cohere cohere2 cwm deepseek_v2 deepseek_v4 doge dots3_note
    ernie4_5 esm esmc flint gemma2 glm glm4_moe glm4v_moe glm_moe_dsa gpt_oss granite granite_swa
    granitemoehybrid hunyuan_v1_dense hy_v4 laguna lfm2_moe llama mimo_v2_flash minicpm3 minimax
    minimax_m2 minimax_m3_vl ministral3 mistral4 mllama molmo2 moonshine muse_glimmer neomme olmo3
    openai_privacy_filter phi qwen3_5 qwen3_vl smollm3 stablelm zamba2
"""


@pytest.mark.parametrize("directory", [*SHORT.split(), *map(slow, LATER.split())])
def test_a_plan_is_what_the_model_does(directory: str) -> None:
    assert plans.list_equal(directory)


def test_a_wrong_plan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each fact that the comparison is for."""
    model = plans.build_model(transformers.Gemma3TextModel, num_hidden_layers=6)
    assert plans.find_differences(model) == []
    layers, true = rope_xp.plan(model.config), rope_xp.plan
    for field, value in (
        ("rope", None),
        ("rope", layers[5].rope),
        ("heads", 3),
        ("kv_heads", 8),
        ("head_dim", 64),
        ("softmax_scale", 1.0),
        ("norm", None),
        ("norm", replace(layers[0].norm, offset=0.0)),
        ("norm", replace(layers[0].norm, eps=1e-3)),
        ("norm", replace(layers[0].norm, kind="layer")),
        ("norm", replace(layers[0].norm, after_rotation=True)),
    ):
        wrong = (replace(layers[0], **{field: value}), *layers[1:])
        monkeypatch.setattr(rope_xp, "plan", lambda _, wrong=wrong: wrong)
        assert plans.find_differences(model), (field, value)
        monkeypatch.setattr(rope_xp, "plan", true)


def test_facts_of_attention_are_of_known_models() -> None:
    assert set(_attention.ATTENTION) <= set(_models.MODELS)


# --- what a file leaves out ----------------------------------------------------------------------


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    hide = lambda name, *rest: None if name == "transformers" else find(name, *rest)  # noqa: E731  # short
    monkeypatch.setattr(importlib.util, "find_spec", hide)


def test_a_sparse_file_has_the_defaults_of_its_class() -> None:
    """gemma-3-4b-it has a text_config of six keys."""
    layers = rope_xp.plan(REAL["gemma_3_4b"])
    text = transformers.Gemma3TextConfig(**REAL["gemma_3_4b"]["text_config"])
    assert layers == rope_xp.plan(text)
    assert [layer.kind for layer in layers] == text.layer_types
    assert layers[0].head_dim == 256


@pytest.mark.usefixtures("no_transformers")
def test_a_sparse_file_is_an_error_without_transformers() -> None:
    with pytest.raises(RopeConfigError, match="is missing, and a plan needs it; add it, or inst"):
        rope_xp.plan(REAL["gemma_3_4b"])


@pytest.mark.usefixtures("no_transformers")
@pytest.mark.parametrize("name", ["llama_3_1_8b", "qwen3_30b_a3b"])
def test_a_file_that_says_all_needs_no_transformers(name: str) -> None:
    config = {"head_dim": 128, "rms_norm_eps": 1e-6, **REAL[name]}
    assert len(rope_xp.plan(config)) == config["num_hidden_layers"]


@pytest.mark.usefixtures("no_transformers")
def test_plan_derives_head_dim_without_transformers() -> None:
    llama: dict[str, Any] = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
    llama |= {"num_hidden_layers": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    assert rope_xp.plan(llama)[0].head_dim == 128
    assert rope_xp.plan({**llama, "model_type": "qwen3", "hidden_size": 2048})[0].head_dim == 128
    assert (
        rope_xp.plan({**llama, "model_type": "yi", "rope_theta": 5e6}, layout="half")[0].head_dim
        == 128
    )


def test_plan_of_an_unknown_type_asks_for_the_key_alone() -> None:
    config = {"model_type": "yi", "hidden_size": 4096, "rope_theta": 1e4, "num_hidden_layers": 2}
    with pytest.raises(RopeConfigError, match="head_dim is missing, and a plan needs it$"):
        rope_xp.plan(config, layout="half")


@pytest.mark.slow
def test_plan_derives_the_head_dim_that_every_class_fills_in() -> None:
    compared = 0
    for model_type, kind in transformers.CONFIG_MAPPING.items():
        row = _models.get_row(model_type)
        if row is None or row.axial:
            continue
        try:
            part = dict(_parts.find_part(kind().to_dict()))
            expected = _plan.build_plan(part, None)
        except (RopeConfigError, ImportError):
            continue
        for key in ("head_dim", "attention_head_dim"):
            part.pop(key, None)
        for width in {"hidden_size", "d_model", "n_embd"} & {*part}:
            part[width] = int(part[width]) * 2
        try:
            class_fills = _plan.find_class(part).from_dict(copy.deepcopy(part)).to_dict()
            expected = _plan._build_layers(class_fills, None, is_filled=True)
            layers = _plan._build_layers(part, None, is_filled=False)
        except Exception:  # noqa: BLE001  # of a class that takes no other width, or a key is missing
            continue
        assert [x.head_dim for x in layers] == [x.head_dim for x in expected], model_type
        compared += 1
    assert compared > 100


@pytest.mark.slow
@pytest.mark.usefixtures("no_transformers")
def test_layers_without_attention_are_not_guessed() -> None:
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


def test_types_of_layers_must_have_parameters() -> None:
    gemma = transformers.Gemma3TextConfig().to_dict()
    gemma["layer_types"][2] = "odd_attention"
    with pytest.raises(RopeConfigError, match="'odd_attention', and rotary parameters are for"):
        rope_xp.plan(gemma)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_hidden_layers": "x"}, "num_hidden_layers must be"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be at most 16384"),
        ({"num_attention_heads": 0}, "num_attention_heads must be"),
        ({"num_key_value_heads": 1.5}, "num_key_value_heads must be"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must list 32 layers; got 3"),
    ],
)
def test_impossible_values_are_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RopeConfigError, match=message):
        rope_xp.plan({**REAL["llama_3_1_8b"], "head_dim": 128, **more})


def test_a_long_plan_is_read_in_time() -> None:
    """Each layer differs, so that nothing is shared."""
    count = 1 << 14
    sizes = {"num_hidden_layers": count, "num_attention_heads": 8, "num_key_value_heads": 8}
    overrides = {f"{i:05}": {"num_attention_heads": 8 + i} for i in range(count)}
    config = {"model_type": "llama", "head_dim": 64, **sizes, "per_layer_config": overrides}
    start = time.perf_counter()
    assert len(_plan.group_layers(rope_xp.plan(config))) == count
    assert time.perf_counter() - start < 10  # quadratic time would take minutes


@pytest.mark.parametrize("name", sorted(REAL))
def test_a_plan_has_the_ropes_of_from_hf_config(name: str) -> None:
    ropes = rope_xp.from_hf_config(REAL[name])
    known = set(ropes.values()) if isinstance(ropes, dict) else {ropes}
    assert {layer.rope for layer in rope_xp.plan(REAL[name])} - {None} == known - {None}


# --- the temperature of q, and indexers ----------------------------------------------------------


@pytest.mark.parametrize("model_type", ["ministral3", "mistral4"])
def test_query_factors_of_ministral(model_type: str) -> None:
    config = transformers.CONFIG_MAPPING[model_type]()
    file = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    positions = torch.tensor([[0, 1, 8191, 8192, 16383, 16384, 16385, 500_000]])
    rule = config.rope_parameters
    beta, length = rule["llama_4_scaling_beta"], rule["original_max_position_embeddings"]
    theirs = file.get_llama_4_attn_scale(positions, beta, length)[:, 0, :, 0]
    (ours,) = {layer.temperature for layer in rope_xp.plan(config)}
    assert ours is not None
    assert (theirs.max() > 1.1) & (theirs.min() == 1)
    factors = rope_xp.plan(config)[0].query_factors(positions.numpy())
    np.testing.assert_allclose(factors, theirs, rtol=1e-6)


def test_query_factors_of_llama_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries of layers with and without the temperature differ by its factors."""
    queries: dict[bool, dict[int, Any]] = {}
    attend = plans.modeling.ALL_ATTENTION_FUNCTIONS

    def see(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        queries[tuned].setdefault(module.layer_idx, q)
        return torch.zeros(q.shape).transpose(1, 2), None

    attend.register("see_queries", see)
    more = {"num_hidden_layers": 4, "floor_scale": 4, "attn_scale": 0.3}
    for tuned in (False, True):
        queries[tuned] = {}
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

    def update_indexer(self, k: Any, _: int) -> Any:
        self.k = k
        return k


@pytest.mark.parametrize(
    "model_type", ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "dots3_note_text"]
)
def test_rope_of_indexers(model_type: str) -> None:
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
    assert layer.rope is not None
    cos, sin = layer.rope.cos_sin(torch.arange(40, 46), 16)
    tables = [torch.cat([x, x], dim=-1)[None] for x in (cos, sin)]
    mask = torch.zeros(1, 6, 6)
    arguments = (torch.randn(1, 6, 64), torch.randn(1, 6, 32), tables, mask)
    accepted = len(importlib.import_module("inspect").signature(indexer.forward).parameters)
    indexer(*arguments, *[torch.arange(40, 46)[None]] * (accepted - 5), cache)
    ours = layer.indexer.rope.rotate(normalized[0], np.arange(40, 46), axes="bsd")
    torch.testing.assert_close(ours, cache.k.reshape(ours.shape), atol=1e-5, rtol=0)
    assert (layer.indexer.heads, layer.indexer.head_dim) == (2, 48)


# --- the report ----------------------------------------------------------------------------------


def test_inspect_reports_the_plan(capsys: Any, tmp_path: Any) -> None:
    main = importlib.import_module("rope_xp.__main__").main
    path = tmp_path / "config.json"
    path.write_text(json.dumps(transformers.Gemma3TextConfig(num_hidden_layers=12).to_dict()))
    assert main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    sliding, full = report["plan"]
    assert (sliding["layers"], full["layers"]) == ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], [5, 11])
    assert sliding["norm"]["offset"] == 1.0
    assert report["no_plan"] is None


def test_inspect_says_why_there_is_no_plan(capsys: Any, tmp_path: Any) -> None:
    main = importlib.import_module("rope_xp.__main__").main
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "zaya", "head_dim": 64, "num_hidden_layers": 2}))
    assert main(["inspect", str(path)]) == 0
    assert "- no plan of model_type 'zaya': its norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more",
    [
        {"multi_query": True},
        {"multi_query": False, "num_kv_heads": 4},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"alibi": False},
    ],
)
def test_heads_of_falcon(more: dict[str, Any]) -> None:
    config = transformers.FalconConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=8, **more
    )
    attention = transformers.FalconModel(config).h[0].self_attention
    (layer,) = rope_xp.plan(config)
    assert (layer.heads, layer.kv_heads) == (attention.num_heads, attention.num_kv_heads)
    assert layer.head_dim == attention.head_dim
