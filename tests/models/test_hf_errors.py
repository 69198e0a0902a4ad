"""What from_hf_config says of configurations that describe no RoPE."""

import math
import re

import pytest
from support.configs import LLAMA

from rope_xp import RopeConfigError, from_hf_config

LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
LONGROPE = {**LISTS, "rope_type": "longrope"}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
TYPED = {"full_attention": {"rope_type": "default"}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def refused(config, *parts):
    with pytest.raises(RopeConfigError) as caught:
        from_hf_config(config)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


MISSING = [
    *(({"rope_type": name}, "factor") for name in ("linear", "dynamic", "llama3")),
    ({**LONGROPE, "short_factor": None}, "short_factor"),
    ({"rope_type": "longrope", "short_factor": [1.0] * 32}, "long_factor"),
    ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
    ({**LLAMA3, "high_freq_factor": None}, "high_freq_factor"),
]


@pytest.mark.parametrize(("parameters", "key"), MISSING)
def test_missing_key_of_a_rule_is_named(parameters, key):
    message = f"{key} is missing; rope_type {parameters['rope_type']!r} needs it"
    refused({**LLAMA, "rope_parameters": parameters}, f"rope_parameters: {message}")
    nested = {"full_attention": parameters}
    refused({**LLAMA, "rope_parameters": nested}, f"rope_parameters.full_attention: {message}")


FACTORS = [
    *({"rope_type": name} for name in ("linear", "dynamic", "proportional")),
    *(YARN, LLAMA3, {**LONGROPE, "original_max_position_embeddings": 512}),
]


@pytest.mark.parametrize("value", [0, -2.0, "4", True, math.nan, [4.0]], ids=repr)
def test_values_that_are_no_positive_number_are_refused(value):
    for parameters in FACTORS:
        config = {**LLAMA, "rope_parameters": {**parameters, "factor": value}}
        refused(config, "rope_parameters: ", "factor must be", f"got {value!r}")
    for key in ("rope_theta", "partial_rotary_factor"):
        refused({**LLAMA, key: value}, f"{key} must be", f"got {value!r}")
        refused({**LLAMA, "rope_parameters": {key: value}}, f"{key} must be", f"got {value!r}")


@pytest.mark.parametrize("value", [0, -1, 512.0, "512", True])
def test_values_that_are_no_positive_integer_are_refused(value):
    name = "original_max_position_embeddings"
    for parameters in (YARN, LLAMA3, LONGROPE):
        refused({**LLAMA, "rope_parameters": {**parameters, name: value}}, name, f"got {value!r}")
        refused({**LLAMA, name: value, "rope_parameters": parameters}, name, f"got {value!r}")
    for key in ("hidden_size", "num_attention_heads", "head_dim", "kv_channels"):
        refused({**LLAMA, key: value, "rope_theta": 1e4}, f"{key} must be", f"got {value!r}")


# Parts of the message; what is added to a small Llama.
PARAMETERS = {
    "beta_fast must not be below beta_slow = 2; got 1": {**YARN, "beta_fast": 1, "beta_slow": 2},
    "short_factor has 31 entries ... 32 pairs": {**LONGROPE, "short_factor": [1.0] * 31},
    "rope_parameters.full = 5 is not the dictionary ... rope_type": {"full": 5},
    "factor is missing, and so is original_max_position_embeddings": {"rope_type": "yarn"},
}
SCALINGS = {
    "= 1.0 and long_mscale = 2.0": {**LONGROPE, "short_mscale": 1.0, "long_mscale": 2.0},
    "rope_type 'warp' is not known ... 'yarn'": {"type": "warp"},
    "rope_scaling must be ... got 'linear'": "linear",
    "rope_scaling: the base that NTK computes ... got 0.0": {"type": "dynamic", "alpha": 1e-320},
}
ODD = {"model_type": "phi3", "head_dim": 50, "partial_rotary_factor": 0.3, "rope_scaling": YARN}
IMPOSSIBLE = {
    **{message: {"rope_parameters": value} for message, value in PARAMETERS.items()},
    **{message: {"rope_scaling": value} for message, value in SCALINGS.items()},
    "partial_rotary_factor must be above 0 and at most 1; got 1.5": {"model_type": "phi3"}
    | {"partial_rotary_factor": 1.5},
    "rope_scaling ... base must not be 1": {"rope_theta": 1.0, "rope_scaling": YARN},
    "51 components": {"head_dim": 51, "rope_theta": 1e4},
    "15 rotated components must be even": ODD,
    "64 components ... head of 32": {"model_type": "phi3", "head_dim": 32, "rotary_dim": 64},
    "layer_types is missing; rope_theta lists an entry ... [10000.0, 100000.0]": {
        "model_type": "ultrabert",
        "rope_theta": [1e4, 1e5],
    },
    "one dictionary for each of full_attention, sliding_attention ... 'linear'": {
        "model_type": "gemma4_text",
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    **{
        f"rope_scaling: mrope_section ... {message}": {
            "model_type": model_type,
            "rope_scaling": {"mrope_section": values},
        }
        for model_type, values, message in (
            ("qwen2_vl", [8, 12, 13], "[8, 12, 13] must sum to 32"),
            ("qwen2_vl", [16, 16.0, 0], "three integers or more; got [16, 16.0, 0]"),
            ("ernie4_5_vl_moe", [10, 12, 10], "[10, 12, 10]: height and width must be equal"),
            ("hunyuan_vl", [8, 8, 8, 8], "is not a rotation"),
        )
    },
    **{
        f"model_type {name!r}{reason}": {"model_type": name, "rope_theta": 1e4, **flag}
        for name, flag, reason in (
            ("musicflamingo", {}, ": its angles are products of two positions"),
            ("nanochat", {}, ": it rotates by the negative angle"),
            ("kimi_linear", {}, ": it has no rotary embedding"),
            ("falcon", {"alibi": True}, " has alibi"),
            ("wav2vec2-bert", {}, " rotates only with position_embeddings_type = 'rotary'"),
            ("zamba2", {"use_mem_rope": False}, " rotates only with use_mem_rope = True; got Fa"),
            (
                *("esm", {"position_embedding_type": "absolute"}),
                " has position_embedding_type = 'absolute', and so no rotary embedding",
            ),
        )
    },
}


@pytest.mark.parametrize("message", IMPOSSIBLE)
def test_impossible_values_are_refused(message):
    refused({**LLAMA, **IMPOSSIBLE[message]}, *message.split(" ... "))


AXIAL = {"rope_parameters": {"rope_type": "axial"}}
ROTATING = {"vision_config": {"model_type": "pixtral"}, "other": {"rope_theta": 1e4}}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
# A part of the message, a model type and its keys. The sizes of phi3 are not known.
MISSING_SIZES = [
    ("head_dim is missing", "phi3", {"partial_rotary_factor": 0.5}),
    ("and so is hidden_size; rope_type 'axial' divides it", "efficientloftr", AXIAL),
    ("max_position_embeddings is missing", "llama", {"rope_scaling": LLAMA3}),
    ("so is max_position_embeddings", "llama", {"rope_scaling": {**YARN, "factor": None}}),
    ("'gpt2' has no rotary embedding", "gpt2", {"n_embd": 768, "n_head": 12}),
    ("; pass only the part that has one: vision_config, other", "clip", {**ROTATING, "a": {}}),
    ("rotary_pct, rope_pct", "clip", dict.fromkeys(ROTATING)),
]


@pytest.mark.parametrize(("message", "model_type", "keys"), MISSING_SIZES)
def test_missing_sizes_are_named(message, model_type, keys):
    refused({"model_type": model_type, **keys}, message)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("factr", 4.0, "did you mean factor?"),
        ("original_max_position_embedding", 64, "did you mean original_max_position_embeddings?"),
        ("colour", "red", "remove it if it changes no rotation"),
    ],
)
def test_unknown_keys_are_refused_with_a_hint(key, value, hint):
    wrong = {**YARN, key: value}
    message = f"{key} = {value!r} is an unknown key; {hint}"
    refused({**LLAMA, "rope_scaling": wrong}, f"rope_scaling.{message}")
    nested = {"full_attention": YARN, "sliding_attention": wrong}
    refused({**LLAMA, "rope_parameters": nested}, f"rope_parameters.sliding_attention.{message}")
    refused({**LLAMA, "rope_parameters": {**TYPED, key: value}}, f"rope_parameters.{message}")


def test_keys_of_files_that_do_not_change_the_rotation_are_ignored():
    plain = from_hf_config({**LLAMA, "rope_scaling": YARN})
    for more in (
        {"finetuned": True, "attn_factor": 1, "extrapolation_factor": 1},  # Yarn-Llama-2
        {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144},  # Ministral 3
        {"interleaved": True, "apply_yarn_scaling": True, "factr": None},
    ):
        assert from_hf_config({**LLAMA, "rope_scaling": {**YARN, **more}}) == plain
    # The files of ModernBERT have "absolute", which its class no longer reads.
    modernbert = {"model_type": "modernbert"}
    absolute = modernbert | {"position_embedding_type": "absolute"}
    assert from_hf_config(absolute) == from_hf_config(modernbert)


def test_files_that_hold_no_configuration_are_refused(tmp_path):
    file = tmp_path / "config.json"
    for path in (tmp_path, str(file)):
        with pytest.raises(FileNotFoundError, match=re.escape("config.json")):
            from_hf_config(path)
    with pytest.raises(FileNotFoundError, match="rope_xp downloads nothing") as caught:
        from_hf_config("meta-llama/Llama-3.1-8B")
    assert "hf download meta-llama/Llama-3.1-8B config.json" in str(caught.value)
    for content, message in ((b"{", "no JSON"), (b"\xff{}", "no JSON"), (b"[]", "got list")):
        file.write_bytes(content)
        with pytest.raises(RopeConfigError, match=f"{re.escape(str(file))}.*{message}"):
            from_hf_config(file)


LISTED = type("Listed", (), {"to_dict": lambda self: []})()


@pytest.mark.parametrize("config", [None, 3, [("rope_theta", 1e4)], b"config.json", LISTED])
def test_things_that_are_no_configuration_are_type_errors(config):
    with pytest.raises(TypeError, match=rf"config must be .*; got {type(config).__name__}$"):
        from_hf_config(config)
