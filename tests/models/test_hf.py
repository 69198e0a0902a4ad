"""from_hf_config without transformers: what a configuration may be, and what becomes of it."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import BASE, CONTEXT, LLAMA, SCALINGS, SIZES, YARN, list_spellings, longrope

from rope_xp import RoPE, from_hf_config
from rope_xp.hf._models import MODELS
from rope_xp.scaling import NTK, DynamicNTK, Linear, LongRoPE, Proportional, YaRN


def test_flat_qwen2_vl_and_its_parts_are_the_same() -> None:
    mrope = {"type": "mrope", "mrope_section": [8, 12, 12]}
    old = {"model_type": "qwen2_vl", **SIZES, "rope_theta": BASE, "rope_scaling": mrope}
    part = {**old, "model_type": "qwen2_vl_text"}
    part["rope_scaling"] = {**mrope, "rope_type": "default"}
    whole = {"model_type": "qwen2_vl", "text_config": part}
    axes = (0,) * 8 + (1,) * 12 + (2,) * 12
    expected = RoPE(base=BASE, layout="half", position_axes=axes)
    assert [from_hf_config(config) for config in (old, part, whole)] == [expected] * 3
    nested = {"model_type": "qwen2_5_omni", "thinker_config": {**whole, "vision_config": {}}}
    assert from_hf_config(nested) == expected


def rope_of(keys: dict[str, Any]) -> RoPE | dict[str, RoPE | None]:
    return from_hf_config({**LLAMA, **keys})


def test_a_layer_type_without_positions_is_none() -> None:
    full = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
    nested = {"full_attention": full, "sliding_attention": None}
    ropes = rope_of({"layer_types": list(nested), "rope_parameters": nested})
    assert ropes == {
        "full_attention": RoPE(base=777.0, layout="half", scaling=Linear(2.0)),
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
    expected = RoPE(base=1e4, layout="interleaved_to_half", rotary_dim=64, rotary_offset=-64)
    assert from_hf_config(latent) == from_hf_config({**latent, "rope_interleave": True}) == expected
    assert from_hf_config({**latent, "rope_interleave": False}) == RoPE(
        base=1e4, layout="half", rotary_dim=64, rotary_offset=-64
    )


def test_rotary_dim_of_gptj() -> None:
    sizes = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
    assert from_hf_config({**sizes, "rotary_dim": 64}) == RoPE(
        base=1e4, layout="interleaved", rotary_dim=64
    )
    assert from_hf_config({**sizes, "rotary_dim": None}) == RoPE(base=1e4, layout="interleaved")


def test_an_odd_share_of_the_head_has_one_more_component_and_its_own_series() -> None:
    rope = rope_of({"head_dim": 50, "partial_rotary_factor": 0.3, "rope_theta": 500.0})
    assert rope.rotary_dim == 16
    odd = 500.0 ** (-2.0 * np.arange(8) / 15)
    # the base is raised to 16/15 and then to -2i/16: two roundings of an exponent of 6
    np.testing.assert_allclose(rope.frequencies(50), odd, rtol=1e-14)


def test_the_magnitude_of_phimoe() -> None:
    keys = {**longrope(32), "original_max_position_embeddings": 1024}
    equal = {"type": "longrope", **keys, "short_mscale": 1.25, "long_mscale": 1.25}
    rope = from_hf_config({**LLAMA, "model_type": "phimoe", "rope_scaling": equal})
    assert rope.attention_factor == 1.25


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
        assert from_hf_config(config) == RoPE(base=BASE, layout="half")


@pytest.mark.parametrize(("name", "keys"), SCALINGS)
def test_results_are_values_and_the_input_is_left_alone(name: str, keys: dict[str, Any]) -> None:
    for spelling in list_spellings(name, keys).values():
        raw = {**copy.deepcopy(LLAMA), **copy.deepcopy(spelling)}
        before = copy.deepcopy(raw)
        rope = from_hf_config(raw)
        assert raw == before
        again = pickle.loads(pickle.dumps(rope))
        assert (again, hash(again)) == (rope, hash(rope))
    kinds = (Linear, DynamicNTK, YaRN, LongRoPE, Proportional)
    assert (rope.scaling is None) == (name == "default") or isinstance(rope.scaling, kinds)


def test_a_dictionary_is_read_without_torch_and_transformers() -> None:
    code = (
        "import sys, rope_xp; rope_xp.from_hf_config({'model_type': 'llama', 'rope_theta': 1e4})\n"
        "assert not {'torch', 'transformers', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    for name, sizes in {name: row.sizes for name, row in MODELS.items() if row.sizes}.items():
        model_type = next(n for n in (f"{name}_text", name) if n in auto.CONFIG_MAPPING)
        defaults = auto.CONFIG_MAPPING[model_type]().to_dict()
        assert {key: defaults[key] for key in sizes} == sizes, name


def test_a_head_that_is_missing() -> None:
    sparse = {"model_type": "glm4", "hidden_size": 5120, "num_attention_heads": 64}
    assert from_hf_config(sparse) == RoPE(base=1e4, layout="interleaved", rotary_dim=64)
    assert from_hf_config({**sparse, "head_dim": 80}).rotary_dim == 40
    assert from_hf_config({"model_type": "phi", "hidden_size": 2560}).rotary_dim == 40  # 2560 / 32
