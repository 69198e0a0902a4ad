"""to_hf_config: what it writes reads as the rope, here and in transformers, in either spelling."""

import copy
import logging
from dataclasses import replace

import pytest

from rope_xp import RoPE, RopeConfigError, from_hf_config, scaling, to_hf_config
from rope_xp.hf._models import get_row

SCALINGS = (
    None,
    scaling.Linear(2.0),
    scaling.DynamicNTK(2.0, 4096),
    scaling.YaRN(4.0, 4096),
    scaling.Llama3(8.0, 1.0, 4.0, 8192),
)
RESTRICTED = {
    **dict.fromkeys(("phi3", "phimoe", "phi4_multimodal"), "their classes take LongRoPE alone"),
    **dict.fromkeys(("cosmos3_edge", "cosmos3_edge_text"), "its class takes no scaling"),
    "recurrent_gemma": "its class needs a length that it does not have",
    "step3p5": "its class drops the parameters of layers with a window",
    "glm4_moe": "21 components of its default heads rotate, which YaRN and dynamic NTK refuse",
}


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
    for name in auto.CONFIG_MAPPING:
        row = get_row(name)
        if row is None:
            continue
        config = auto.CONFIG_MAPPING[name]().to_dict()
        try:
            rope = from_hf_config(config)
        except RopeConfigError:  # of a default configuration that rotates nothing
            continue
        scaled = [] if row.axial or name in RESTRICTED else [change(rope, s) for s in SCALINGS]
        for changed in (rope, *scaled):
            before = copy.deepcopy(config)
            result = to_hf_config(changed, config)
            assert config == before
            assert from_hf_config(result) == changed, name
            again = auto.CONFIG_MAPPING[name].from_dict(result).to_dict()
            assert from_hf_config(again) == changed, name
            written += 1
    assert written > 1000


@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", RESTRICTED)
def test_types_that_to_hf_config_is_not_tested_with_are_restricted(name):
    kind = pytest.importorskip("transformers").CONFIG_MAPPING[name]
    config = kind().to_dict()

    def holds(rule):
        changed = change(from_hf_config(config), rule)
        try:
            again = kind.from_dict(to_hf_config(changed, config)).to_dict()
            return bool(from_hf_config(again) == changed)
        except Exception:  # noqa: BLE001  # classes of transformers have errors of their own
            return False

    assert not all(map(holds, SCALINGS))


OLD = {
    "llama": {"head_dim": 128, "rope_theta": 5e5, "rope_scaling": None},
    "stablelm": {"head_dim": 64, "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "gpt_neox": {"hidden_size": 512, "num_attention_heads": 8, "rotary_emb_base": 2e4}
    | {"rotary_pct": 0.25},
    "gptj": {"n_embd": 4096, "n_head": 16, "rotary_dim": 64, "rope_theta": 1e4},
    "qwen2_vl": {"head_dim": 128, "rope_theta": 1e6}
    | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    "gemma3": {"head_dim": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "phi3": {"head_dim": 8, "rope_theta": 1e4, "original_max_position_embeddings": 4096}
    | {"max_position_embeddings": 131072}
    | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}},
    "deepseek_v3": {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "rope_theta": 1e4}
    | {
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
        | {"mscale": 1.0, "mscale_all_dim": 1.0}
    },
    "hunyuan_v1_dense": {"head_dim": 128, "rope_theta": 1e4}
    | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    "exaone4": {"head_dim": 128, "rope_theta": 1e6, "sliding_window": 4096},
}


@pytest.mark.parametrize("name", OLD)
def test_to_hf_config_keeps_the_spelling_of_transformers_4(name):
    config = {"model_type": name, **OLD[name]}
    rope = from_hf_config(config)
    ropes = [rope]
    ropes += [] if isinstance(rope, dict) else [replace(rope, base=3e5)]
    ropes += [change(rope, scaling.YaRN(4.0, 4096))] if name not in ("gemma3", "gptj") else []
    for changed in ropes:
        result = to_hf_config(changed, config)
        assert from_hf_config(result) == changed
        assert "rope_parameters" not in result
        assert {*config} <= {*result} <= {*config, "rope_scaling"}


def test_to_hf_config_extends_a_context_and_keeps_all_else():
    """What assigning rope_scaling to a configuration of transformers 5 loses."""
    config = {"model_type": "stablelm", "head_dim": 64, "hidden_act": "silu"}
    config["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 5e5,
        "partial_rotary_factor": 0.5,
    }
    longer = change(from_hf_config(config), scaling.YaRN(4.0, 4096))
    result = to_hf_config(longer, config)
    assert result == {
        **config,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 5e5,
            "partial_rotary_factor": 0.5,
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
        },
    }


def test_to_hf_config_writes_the_language_part_and_other_sections():
    text = {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_theta": 5e6}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 2}}
    rope = from_hf_config(config)
    axes = tuple(i % 3 if i < 3 * (22, 21, 21)[i % 3] else 0 for i in range(64))
    changed = replace(rope, position_axes=axes, base=1e6)
    result = to_hf_config(changed, config)
    assert from_hf_config(result) == changed
    assert result["text_config"]["rope_theta"] == 1e6
    assert result["text_config"]["rope_scaling"]["mrope_section"] == [22, 21, 21]
    assert (result["vision_config"], config["text_config"]) == ({"depth": 2}, text)


def test_to_hf_config_of_a_type_without_parameters_writes_those_of_transformers_5():
    result = to_hf_config(RoPE(base=5e5, layout="half"), {"model_type": "llama", "head_dim": 64})
    assert result["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e5}


class Own(scaling.Linear):
    """A scaling of one's own."""


@pytest.mark.parametrize(
    ("config", "rope", "message"),
    [
        ("llama", RoPE(), "layout is 'half' and not 'interleaved'"),
        ("llama", RoPE(layout="half", rotary_offset=2), "rotary_offset is 0 and not 2"),
        ("llama", RoPE(layout="half", scaling=Own(2.0)), "no configuration has keys for Own"),
        (
            "llama",
            RoPE(layout="half", scaling=scaling.DynamicNTK(2.0, 64)).for_length(128),
            "no keys for a fixed length",
        ),
        ("llama", RoPE(layout="half", scaling=scaling.NTK(2.0)), "only HunYuan's .* NTK"),
        ("llama", {"full_attention": None}, "has one RoPE; got a dictionary of full_attention"),
        ("gemma3", RoPE(layout="half"), "a dictionary of full_attention, sliding_attention"),
    ],
)
def test_to_hf_config_refuses_what_a_type_has_no_keys_for(config, rope, message):
    with pytest.raises(RopeConfigError, match=message):
        to_hf_config(rope, {"model_type": config, "head_dim": 64, "rope_theta": 1e4})
