"""from_hf_config without transformers: what a configuration may be, and the RoPE that it gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.configs import BASE, CONTEXT, LLAMA, SIZES, YARN, longrope

from rope_xp import RoPE, RopeConfigError, RopeError, from_hf_config
from rope_xp._arguments.fields import LAYOUTS
from rope_xp.hf import _keys
from rope_xp.hf._models import MODELS
from rope_xp.scaling import NTK, DynamicNTK, Linear

PLAIN = {"rope_theta": 1e4, "head_dim": 64}
HALF, INTERLEAVED = (RoPE(base=1e4, layout=layout) for layout in ("half", "interleaved"))
LATENT = {"qk_rope_head_dim": 64, "rope_theta": 1e4}
LATENT_ROPE = RoPE(base=1e4, layout="interleaved_to_half", rotary_dim=64, rotary_offset=-64)
SECTIONS = {"type": "mrope", "mrope_section": [8, 12, 12]}
QWEN = {"model_type": "qwen2_vl", **SIZES, "rope_theta": BASE, "rope_scaling": SECTIONS}
QWEN_PART = {**QWEN, "model_type": "qwen2_vl_text", "rope_scaling": SECTIONS | {"type": "default"}}
QWEN_ROPE = RoPE(base=BASE, layout="half", position_axes=(0,) * 8 + (1,) * 12 + (2,) * 12)
QWEN_WHOLE = {"model_type": "qwen2_vl", "text_config": QWEN_PART}
FULL = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
MAGNITUDES = {"short_mscale": 1.25, "long_mscale": 1.25}
VISION = {"vision_config": {}}
DEEPSEEK = {"model_type": "deepseek_v3", **LATENT}
GPTJ = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
GLM = {"model_type": "glm4", "hidden_size": 5120, "num_attention_heads": 64}
LINEAR = {"rope_type": "linear", "factor": 8.0}


def unrotated(layout):
    return {"sliding_attention": RoPE(base=1e4, layout=layout), "full_attention": None}


CONFIGS = [
    (QWEN, QWEN_ROPE),
    (QWEN_PART, QWEN_ROPE),
    (QWEN_WHOLE, QWEN_ROPE),
    ({"model_type": "qwen2_5_omni", "thinker_config": {**QWEN_WHOLE, **VISION}}, QWEN_ROPE),
    (  # a layer type without positions
        {**LLAMA, "rope_parameters": {"full_attention": FULL, "sliding_attention": None}}
        | {"layer_types": ["full_attention", "sliding_attention"]},
        {
            "full_attention": RoPE(base=777.0, layout="half", scaling=Linear(2.0)),
            "sliding_attention": None,
        },
    ),
    (DEEPSEEK, LATENT_ROPE),
    ({**DEEPSEEK, "rope_interleave": False}, replace(LATENT_ROPE, layout="half")),
    ({"model_type": "kimi_k2", **LATENT}, LATENT_ROPE),
    ({**GPTJ, "rotary_dim": 64}, replace(INTERLEAVED, rotary_dim=64)),
    ({**GPTJ, "rotary_dim": None}, INTERLEAVED),
    # a missing head_dim
    (GLM, replace(INTERLEAVED, rotary_dim=64)),
    ({**GLM, "head_dim": 80}, replace(INTERLEAVED, rotary_dim=40)),
    ({"model_type": "phi", "hidden_size": 2560}, replace(HALF, rotary_dim=40)),
    # flags that say rotary
    ({**PLAIN, "model_type": "falcon", "alibi": False}, HALF),
    ({**PLAIN, "model_type": "zamba2", "use_mem_rope": True}, HALF),
    ({**PLAIN, "model_type": "esm", "position_embedding_type": "rotary"}, HALF),
    # only sliding layers rotate; those of EXAONE all do without a window
    ({**PLAIN, "model_type": "cohere2"}, unrotated("interleaved")),
    ({**PLAIN, "model_type": "cohere2", "sliding_window": None}, unrotated("interleaved")),
    ({**PLAIN, "model_type": "exaone4"}, unrotated("half")),
    ({**PLAIN, "model_type": "exaone_moe", "sliding_window": 512}, unrotated("half")),
    ({**PLAIN, "model_type": "exaone4", "sliding_window": None}, HALF),
    # rope_scaling wins over rope_parameters
    ({**LLAMA, "rope_scaling": LINEAR, "rope_parameters": FULL}, replace(HALF, scaling=Linear(8))),
    # an alpha is a factor for every length
    ({**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": 8.0}}, replace(HALF, scaling=NTK(8.0))),
    (
        {**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": None, "factor": 2.0}},
        replace(HALF, scaling=DynamicNTK(2.0, CONTEXT)),
    ),
    (  # a part without a type is of the family of the whole
        {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "rope_scaling": LINEAR}},
        {
            "full_attention": RoPE(base=1e6, layout="half", scaling=Linear(8.0)),
            "sliding_attention": HALF,
        },
    ),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS)
def test_rope_of_a_configuration_is_the_expected_one(config, expected):
    assert from_hf_config(config) == expected


def rope_of(keys):
    rope = from_hf_config({**LLAMA, **keys})
    assert isinstance(rope, RoPE)
    return rope


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_vision_config_with_the_type_of_the_whole_is_that_of_the_vision_tower(name: str) -> None:
    vision = {"model_type": name, "hidden_size": 1280, "num_heads": 16, "spatial_merge_size": 2}
    expected = from_hf_config(vision | {"model_type": f"{name}_vision", "embed_dim": 1280})
    assert from_hf_config(vision | {"embed_dim": 1280}) == expected
    del vision["model_type"]
    with pytest.raises(RopeConfigError, match="add the model_type of this part"):
        from_hf_config(vision)


def test_softmax_scale_is_for_latent_attention_alone():
    keys = {"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    assert rope_of(keys).softmax_scale == 1.0
    latent = rope_of({**keys, "qk_rope_head_dim": 64})
    assert latent.softmax_scale == pytest.approx((0.1 * np.log(8.0) + 1.0) ** 2)
    assert latent.attention_factor == rope_of(keys).attention_factor == 1.0
    keys = {**longrope(32), "original_max_position_embeddings": 1024, "type": "longrope"}
    phimoe = {"model_type": "phimoe", "rope_scaling": keys | MAGNITUDES}
    assert rope_of(phimoe).attention_factor == 1.25


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mine", "rope_theta": 1e4}, "'mine' is not known"),
        ({"model_type": "mine", **LATENT}, "'mine' is not known"),
        ({"rope_theta": 1e4}, "model_type is missing"),
    ],
)
def test_layout_of_unknown_models_is_never_guessed(config, message):
    with pytest.raises(RopeConfigError, match=f"{message}.*pass layout="):
        from_hf_config(config)
    for layout in LAYOUTS:
        latent = {"rotary_dim": 64, "rotary_offset": -64} if "qk_rope_head_dim" in config else {}
        expected = RoPE(base=1e4, layout=layout, **latent)
        assert from_hf_config(config, layout=layout) == expected
        # even where the table says another, as for weights in Meta's own order
        for known in ({"model_type": "llama"}, {"model_type": "youtu", "rope_interleave": False}):
            assert from_hf_config({**PLAIN, **known}, layout=layout).layout == layout
    with pytest.raises(RopeError, match="layout must be one of .* got 'neox'"):
        from_hf_config(config, layout="neox")


def test_configuration_may_be_a_dict_a_path_or_an_object(tmp_path):
    raw = {**LLAMA, "rope_theta": BASE}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    configuration = type("Configuration", (), {"to_dict": lambda self: raw})()
    for config in (raw, file, str(file), tmp_path, str(tmp_path), configuration):
        assert from_hf_config(config) == RoPE(base=BASE, layout="half")


def test_default_sizes_are_those_of_transformers():
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    sizes = {name: row.sizes for name, row in MODELS.items() if row.sizes}
    assert len(sizes) > 30
    for name, expected in sizes.items():
        model_type = next(n for n in (f"{name}_text", name) if n in auto.CONFIG_MAPPING)
        defaults = auto.CONFIG_MAPPING[model_type]().to_dict()
        found = {k: _keys.first_value(defaults, k, *_keys.ALIASES.get(k, ())) for k in expected}
        assert found == expected, name
