"""to_hf_config: what it writes reads as the rope, here and in transformers, in either spelling."""

import copy
import logging
from dataclasses import replace

import pytest
from support.configs import OLD

from rope_xp import RoPE, RopeConfigError, from_hf_config, scaling, to_hf_config
from rope_xp.hf._models import get_row

YARN = scaling.YaRN(4.0, 4096)
SCALINGS = (
    *(None, YARN, scaling.Linear(2.0), scaling.DynamicNTK(2.0, 4096)),
    scaling.Llama3(8.0, 1.0, 4.0, 8192),
)
RESTRICTED = {
    **dict.fromkeys(("phi3", "phimoe", "phi4_multimodal"), "their classes take LongRoPE alone"),
    **dict.fromkeys(("cosmos3_edge", "cosmos3_edge_text"), "its class takes no scaling"),
    "recurrent_gemma": "its class needs a length that it does not have",
    "step3p5": "its class drops the parameters of layers with a window",
    "glm4_moe": "21 components of its default heads rotate, which YaRN and dynamic NTK refuse",
}
"""Types whose other scalings are not compared, and why."""


def change(rope, rule):
    if isinstance(rope, dict):
        return {label: r and replace(r, scaling=rule) for label, r in rope.items()}
    return replace(rope, scaling=rule)


# Some classes set it themselves.
@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
def test_to_hf_config_of_every_type_is_read_as_the_same_rope():
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    written = 0
    for name in filter(get_row, auto.CONFIG_MAPPING):
        config = auto.CONFIG_MAPPING[name]().to_dict()
        try:
            rope = from_hf_config(config)
        except RopeConfigError:  # of a default configuration that rotates nothing
            continue
        is_plain = get_row(name).axial or name in RESTRICTED
        for changed in (rope, *([] if is_plain else [change(rope, rule) for rule in SCALINGS])):
            before = copy.deepcopy(config)
            result = to_hf_config(changed, config)
            assert config == before
            assert from_hf_config(result) == changed, name
            again = auto.CONFIG_MAPPING[name].from_dict(result).to_dict()
            assert from_hf_config(again) == changed, name
            written += 1
    assert written > 1000


SECTIONS = {"rope_type": "mrope", "mrope_section": [16, 24, 24]}
PLAIN = {
    name: {"model_type": name, "head_dim": 128, "rope_theta": 1e6, **keys}
    for name, keys in {
        "llama": {"rope_scaling": None},
        "gptj": {"rotary_dim": 64},
        "qwen2_vl": {"rope_scaling": SECTIONS},
        "exaone4": {"sliding_window": 4096},
    }.items()
}
KEPT = ["gpt_neox", "stablelm", "gemma3_text", "modernbert", "hunyuan_v1_dense", "sarvam_mla"]


@pytest.mark.parametrize("config", [*PLAIN.values(), *map(OLD.get, KEPT), OLD["phi3, partial"]])
def test_to_hf_config_keeps_the_spelling_of_transformers_4(config):
    rope = from_hf_config(config)
    ropes = [rope]
    ropes += [] if isinstance(rope, dict) else [replace(rope, base=3e5)]
    ropes += [] if config["model_type"] == "gemma3_text" else [change(rope, YARN)]
    for changed in ropes:
        result = to_hf_config(changed, config)
        assert from_hf_config(result) == changed
        assert {*config} <= {*result} <= {*config, "rope_theta", "rope_scaling"}


def test_to_hf_config_writes_rope_parameters_for_what_rope_scaling_cannot_say():
    """rope_scaling of Gemma 3 is for its layers of full attention alone."""
    config = OLD["gemma3_text"]
    changed = change(from_hf_config(config), YARN)
    result = to_hf_config(changed, config)
    assert from_hf_config(result) == changed
    assert "rope_scaling" not in result


STABLELM = {"model_type": "stablelm", "head_dim": 64, "hidden_act": "silu"}
PARTIAL = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
LONGER = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def test_to_hf_config_extends_a_context_and_keeps_all_else():
    """What assigning rope_scaling to a configuration of transformers 5 loses."""
    config = {**STABLELM, "rope_theta": 5e5, "rope_parameters": PARTIAL}
    changed = replace(from_hf_config(config), scaling=YARN, base=1e6)
    base = {"rope_theta": 1e6}  # at top level too, which other versions read
    expected = {**STABLELM, **base, "rope_parameters": PARTIAL | LONGER | base}
    assert to_hf_config(changed, config) == expected


def test_to_hf_config_writes_the_language_part_and_other_sections():
    text = {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_theta": 5e6}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 2}}
    axes = tuple(i % 3 if i < 3 * (22, 21, 21)[i % 3] else 0 for i in range(64))
    changed = replace(from_hf_config(config), position_axes=axes, base=1e6)
    result = to_hf_config(changed, config)
    assert from_hf_config(result) == changed
    assert result["text_config"]["rope_theta"] == 1e6
    assert result["text_config"]["rope_scaling"]["mrope_section"] == [22, 21, 21]
    assert (result["vision_config"], config["text_config"]) == ({"depth": 2}, text)


def test_to_hf_config_writes_a_part_without_a_type():
    config = {"model_type": "gemma3", "text_config": {"hidden_size": 2560}}
    changed = change(from_hf_config(config), YARN)
    assert from_hf_config(to_hf_config(changed, config)) == changed


def test_to_hf_config_of_a_type_without_parameters_writes_those_of_transformers_5():
    result = to_hf_config(RoPE(base=5e5, layout="half"), {"model_type": "llama", "head_dim": 64})
    assert result["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e5}


class Own(scaling.Linear):
    """A scaling of one's own."""


HALF = RoPE(layout="half")
FIXED = replace(HALF, scaling=scaling.DynamicNTK(2.0, 64)).for_length(128)


def test_to_hf_config_writes_whole_heads_beside_a_share_of_all_layers():
    config = {"model_type": "laguna", "partial_rotary_factor": 0.5, "head_dim": 32}
    ropes = from_hf_config(config)
    assert [rope.rotary_dim for rope in ropes.values()] == [16, None]
    assert from_hf_config(to_hf_config(ropes, config)) == ropes


@pytest.mark.parametrize(
    ("model_type", "rope", "message"),
    [
        ("llama", RoPE(), "layout is 'half' and not 'interleaved'"),
        ("llama", replace(HALF, rotary_offset=2), "rotary_offset is 0 and not 2"),
        ("llama", change(HALF, Own(2.0)), "no configuration has keys for Own"),
        ("llama", FIXED, "no keys for a fixed length"),
        ("llama", change(HALF, scaling.NTK(2.0)), "only HunYuan's .* NTK"),
        ("llama", {"full_attention": None}, "has one RoPE; got a dictionary of full_attention"),
        ("gemma3", HALF, "a dictionary of full_attention, sliding_attention; got one RoPE"),
    ],
)
def test_to_hf_config_refuses_what_a_type_has_no_keys_for(model_type, rope, message):
    with pytest.raises(RopeConfigError, match=message):
        to_hf_config(rope, {"model_type": model_type, "head_dim": 64, "rope_theta": 1e4})
