"""from_hf_config against the code of transformers: every rule, every spelling, every old name."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE, from_hf_config
from rope_xp.scaling import NTK, DynamicNTK, Linear, LongRoPE, Proportional, YaRN

BASE, CONTEXT = 54_321.0, 4096
SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "num_hidden_layers": 2,
}
LLAMA = {"model_type": "llama", **SIZES}
YARN = {"factor": 8.0, "original_max_position_embeddings": 512}


def longrope(pairs: int) -> dict[str, Any]:
    short = [1.0 + 0.01 * i for i in range(pairs)]
    return {"short_factor": short, "long_factor": [1.5 * factor for factor in short]}


# --- transformers --------------------------------------------------------------------------------


@pytest.fixture
def _silent() -> Iterator[None]:
    """Have transformers keep to itself that these numbers are odd."""
    logging = pytest.importorskip("transformers").logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


def rotary_module(raw: dict[str, Any]) -> tuple[Any, Any]:
    """Return the rotary module that transformers makes from a configuration, and its file."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[raw["model_type"]](**copy.deepcopy(raw))  # it changes what it is given
    file = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    for name, member in inspect.getmembers(file, inspect.isclass):
        own = member.__module__ == file.__name__
        if own and name.endswith("RotaryEmbedding") and "Vision" not in name:
            return member(config), file
    raise LookupError(raw["model_type"])


def assert_as_transformers(raw: dict[str, Any]) -> None:
    import torch

    found = from_hf_config(raw)
    module, _ = rotary_module(raw)
    for label, rope in found.items() if isinstance(found, dict) else [("", found)]:
        prefix = f"{label}_" if label else ""
        for length in (10, CONTEXT, 3 * CONTEXT):
            more = {"layer_type": label} if label else {}
            module(torch.zeros(1), torch.tensor([[length - 1]]), **more)
            expected = getattr(module, f"{prefix}inv_freq").double().numpy()
            fixed = rope.for_length(length)
            ours = fixed.frequencies(rope.rotary_dim or 2 * len(expected))
            # float32 powers, quotients and products of transformers: a few units of 6e-8
            np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=0, err_msg=label)
            factor = getattr(module, f"{prefix}attention_scaling")
            assert fixed.attention_factor == pytest.approx(factor, rel=1e-12)


RULES: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("linear", {"factor": 3.5}),
    ("dynamic", {"factor": 2.5}),
    ("yarn", YARN),
    ("yarn", {**YARN, "factor": None}),
    ("yarn", {**YARN, "beta_fast": 20, "beta_slow": 2, "truncate": False}),
    ("yarn", {**YARN, "beta_fast": 0, "beta_slow": 0}),  # 0 is for the default
    ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}),
    ("yarn", {**YARN, "mscale": 0.7}),
    ("yarn", {**YARN, "attention_factor": 1.25, "mscale": 0.7, "mscale_all_dim": 1.3}),
    ("yarn", {"factor": 8.0}),  # trained on max_position_embeddings
    ("longrope", {**longrope(32), "original_max_position_embeddings": 1024}),
    ("longrope", {**longrope(32), "original_max_position_embeddings": 1024, "factor": 6.5}),
    ("longrope", {**longrope(32), "factor": 6.5, "attention_factor": 1.125}),
    (
        "llama3",
        {
            "factor": 6.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
            "original_max_position_embeddings": 1000,
        },
    ),
    ("proportional", {"partial_rotary_factor": 0.3, "factor": 2.0}),
]  # fmt: skip


def spelled(name: str, keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the same parameters as transformers 5 and as two versions of 4 wrote them."""
    return {
        "rope_parameters": {"rope_parameters": {"rope_type": name, "rope_theta": BASE, **keys}},
        "rope_scaling": {"rope_theta": BASE, "rope_scaling": {"rope_type": name, **keys}},
        "type": {"rope_theta": BASE, "rope_scaling": {"type": name, **keys}},
    }


@pytest.mark.usefixtures("_silent")
@pytest.mark.parametrize(
    ("model", "name", "keys"),
    [
        (model, name, keys)
        for model in ("llama", "qwen2", "deepseek_v3")
        for name, keys in RULES
        if (model, name) != ("deepseek_v3", "proportional")  # its head_dim has two meanings
    ],
)
def test_every_rule_in_every_spelling(model: str, name: str, keys: dict[str, Any]) -> None:
    raw = {"model_type": model, **SIZES}
    if model == "deepseek_v3":
        raw["qk_rope_head_dim"] = 64
    ropes = []
    for spelling in spelled(name, keys).values():
        assert_as_transformers({**raw, **spelling})
        ropes.append(from_hf_config({**raw, **spelling}))
    assert ropes[1:] == ropes[:-1]
    assert ropes[0].base == BASE
    assert ropes[0].layout == ("interleaved_to_half" if model == "deepseek_v3" else "half")


LAYERS = {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2}
PHI3 = {"model_type": "phi3", **SIZES, "original_max_position_embeddings": 1024}
OLD = {
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 777},
    "gpt_neox, all default": {"model_type": "gpt_neox"},
    "stablelm": {"model_type": "stablelm", "partial_rotary_factor": 0.5, "rope_theta": 777.0},
    "odd": {"model_type": "stablelm", "partial_rotary_factor": 0.3, "head_dim": 50},
    "odd, linear": {
        "model_type": "stablelm", "partial_rotary_factor": 0.3, "head_dim": 50,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "phi3 su": {**PHI3, "rope_scaling": {
        "type": "su", **longrope(32), "original_max_position_embeddings": 1024,
    }},
    "phi3 yarn": {**PHI3, "rope_scaling": {"type": "yarn", **longrope(32)}},
    "phi3 partial": {
        **PHI3, "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", **longrope(24)},
    },
    "phi3, the top level wins": {
        **PHI3,
        "rope_scaling": {
            "type": "longrope", **longrope(32),
            "original_max_position_embeddings": 2048,
        },
    },
    "gemma3": {
        "model_type": "gemma3_text", **LAYERS, "rope_theta": 7e5, "rope_local_base_freq": 3e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3, all default": {"model_type": "gemma3_text", **LAYERS},
    "gemma3, one layer type": {
        "model_type": "gemma3_text", **LAYERS,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}},
    },
    "modernbert": {
        "model_type": "modernbert", "global_rope_theta": 9e4, "local_rope_theta": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "olmo3": {"model_type": "olmo3", **LAYERS, "rope_scaling": {"rope_type": "yarn", **YARN}},
    "deepseek_v4": {
        "model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64,
        "rope_theta": 9e3, "compress_rope_theta": 2e5,
        "rope_scaling": {"type": "yarn", **YARN},
    },
    "step3p5": {
        "model_type": "step3p5", **LAYERS, "head_dim": 128, "rope_theta": [5e6, 1e4] * 2,
        "partial_rotary_factors": [0.5, 1.0] * 2,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "ultrabert": {"model_type": "ultrabert", **LAYERS, "rope_theta": [5e6, 2e4] * 2},
    "hunyuan": {
        "model_type": "hunyuan_v1_dense", "head_dim": 64, "rope_theta": 777.0,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0},
    },
    "no dictionary is taken for an empty one": {
        **LLAMA, "rope_scaling": {},
        "rope_parameters": {"rope_type": "linear", "rope_theta": 777.0, "factor": 2.0},
    },
}  # fmt: skip


@pytest.mark.usefixtures("_silent")
@pytest.mark.parametrize("raw", OLD.values(), ids=OLD)
def test_old_names(raw: dict[str, Any]) -> None:
    assert_as_transformers({**SIZES, **raw})


MROPE = {
    "contiguous": ("qwen2_vl_text", [6, 12, 14]),
    "interleaved": ("qwen3_vl_text", [14, 10, 8]),
    "interleaved, more than a third": ("qwen3_vl_text", [4, 14, 14]),
    "ernie": ("ernie4_5_vl_moe_text", [12, 12, 8]),
}


@pytest.mark.usefixtures("_silent")
@pytest.mark.parametrize(("model", "sections"), MROPE.values(), ids=MROPE)
def test_positions_of_three_components(model: str, sections: list[int]) -> None:
    torch = pytest.importorskip("torch")
    raw = {"model_type": model, **SIZES, "head_dim": 64}
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": BASE, "mrope_section": sections}
    module, file = rotary_module(raw)
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(48, (3, 2, 20), generator=generator)
    q = torch.randn((2, 3, 20, 64), generator=generator)
    expected, _ = file.apply_rotary_pos_emb(q, q, *module(torch.zeros(1), positions))
    found = from_hf_config(raw).rotate(q, positions, axes="bhsd")
    # float32 angles below 48, good to 48 * 6e-8, and |x| below 5
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def test_flat_qwen2_vl_and_its_parts_are_the_same() -> None:
    mrope = {"type": "mrope", "mrope_section": [8, 12, 12]}
    old = {"model_type": "qwen2_vl", **SIZES, "rope_theta": BASE, "rope_scaling": mrope}
    part = {**old, "model_type": "qwen2_vl_text"}
    part["rope_scaling"] = {**mrope, "rope_type": "default"}
    whole = {"model_type": "qwen2_vl", "text_config": part}
    axes = (0,) * 8 + (1,) * 12 + (2,) * 12
    expected = RoPE(BASE, "half", position_axes=axes)
    assert [from_hf_config(config) for config in (old, part, whole)] == [expected] * 3
    nested = {"model_type": "qwen2_5_omni", "thinker_config": {**whole, "vision_config": {}}}
    assert from_hf_config(nested) == expected


# --- without transformers ------------------------------------------------------------------------


def rope_of(keys: dict[str, Any]) -> RoPE | dict[str, RoPE | None]:
    return from_hf_config({**LLAMA, **keys})


def test_a_layer_type_without_positions_is_none() -> None:
    full = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
    nested = {"full_attention": full, "sliding_attention": None}
    found = rope_of({"layer_types": list(nested), "rope_parameters": nested})
    assert found == {
        "full_attention": RoPE(777.0, "half", scaling=Linear(2.0)),
        "sliding_attention": None,
    }


def test_rope_scaling_wins_over_rope_parameters() -> None:
    both = {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 3.0},
    }
    assert rope_of(both).scaling == Linear(2.0)


def test_the_softmax_scale_is_for_latent_attention_alone() -> None:
    keys = {"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    assert rope_of(keys).softmax_scale == 1.0
    latent = rope_of({**keys, "qk_rope_head_dim": 64})
    assert latent.softmax_scale == pytest.approx((0.1 * np.log(8.0) + 1.0) ** 2)
    assert latent.attention_factor == rope_of(keys).attention_factor == 1.0


def test_the_layout_and_the_slice_of_deepseek_v3() -> None:
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 1e4}
    expected = RoPE(1e4, "interleaved_to_half", 64, -64)
    assert from_hf_config(latent) == from_hf_config({**latent, "rope_interleave": True}) == expected
    assert from_hf_config({**latent, "rope_interleave": False}) == RoPE(1e4, "half", 64, -64)


def test_rotary_dim_of_gptj() -> None:
    sizes = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
    assert from_hf_config({**sizes, "rotary_dim": 64}) == RoPE(1e4, "interleaved", 64)
    assert from_hf_config({**sizes, "rotary_dim": None}) == RoPE(1e4, "interleaved")


def test_an_odd_share_of_the_head_has_one_more_component_and_its_own_series() -> None:
    rope = rope_of({"head_dim": 50, "partial_rotary_factor": 0.3, "rope_theta": 500.0})
    assert rope.rotary_dim == 16
    odd = 500.0 ** (-2.0 * np.arange(8) / 15)
    # the base is raised to 16/15 and then to -2i/16: two roundings of an exponent of 6
    np.testing.assert_allclose(rope.frequencies(50), odd, rtol=1e-14)


def test_the_magnitude_of_phimoe() -> None:
    keys = {**longrope(32), "original_max_position_embeddings": 1024}
    equal = {"type": "longrope", **keys, "short_mscale": 1.25, "long_mscale": 1.25}
    found = from_hf_config({**LLAMA, "model_type": "phimoe", "rope_scaling": equal})
    assert found.attention_factor == 1.25


def test_an_alpha_is_a_factor_for_every_length() -> None:
    assert rope_of({"rope_scaling": {"type": "dynamic", "alpha": 8.0}}).scaling == NTK(8.0)
    without = rope_of({"rope_scaling": {"type": "dynamic", "alpha": None, "factor": 2.0}})
    assert without.scaling == DynamicNTK(2.0, CONTEXT)


def test_what_a_configuration_may_be(tmp_path: Path) -> None:
    raw = {**LLAMA, "rope_theta": BASE}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw), encoding="utf-8")

    class Configuration:
        def to_dict(self) -> dict[str, Any]:
            return raw

    for config in (raw, file, str(file), tmp_path, str(tmp_path), Configuration()):
        assert from_hf_config(config) == RoPE(BASE, "half")


@pytest.mark.parametrize(("name", "keys"), RULES)
def test_results_are_values_and_the_input_is_left_alone(name: str, keys: dict[str, Any]) -> None:
    for spelling in spelled(name, keys).values():
        raw = {**copy.deepcopy(LLAMA), **copy.deepcopy(spelling)}
        before = copy.deepcopy(raw)
        rope = from_hf_config(raw)
        assert raw == before
        again = pickle.loads(pickle.dumps(rope))
        assert (again, hash(again)) == (rope, hash(rope))
    kinds = (Linear, DynamicNTK, YaRN, LongRoPE, Proportional)
    assert (rope.scaling is None) == (name == "default") or isinstance(rope.scaling, kinds)


def test_a_dictionary_is_read_without_torch_and_transformers() -> None:
    code = """
import sys, rope_xp
rope_xp.from_hf_config({"model_type": "llama", "rope_theta": 1e4})
found = {"torch", "transformers", "jax"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)
