"""What from_hf_config says of configurations that describe no RoPE, or are too large."""

import json
import math
import os
import re

import pytest
from support.configs import LLAMA

from rope_xp import RopeConfigError, from_hf_config
from rope_xp import __main__ as cli
from rope_xp.hf import _limits

LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
LONGROPE = {**LISTS, "rope_type": "longrope"}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}


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
def test_from_hf_config_names_the_missing_key_of_a_rule(parameters, key):
    message = f"{key} is missing; rope_type {parameters['rope_type']!r} needs it"
    refused({**LLAMA, "rope_parameters": parameters}, f"rope_parameters: {message}")
    nested = {"full_attention": parameters}
    refused({**LLAMA, "rope_parameters": nested}, f"rope_parameters.full_attention: {message}")


FACTORS = [
    *({"rope_type": name} for name in ("linear", "dynamic", "proportional")),
    *(YARN, LLAMA3, {**LONGROPE, "original_max_position_embeddings": 512}),
]


@pytest.mark.parametrize("value", [0, -2.0, "4", True, math.nan, [4.0]], ids=repr)
def test_from_hf_config_refuses_values_that_are_no_positive_number(value):
    for parameters in FACTORS:
        config = {**LLAMA, "rope_parameters": {**parameters, "factor": value}}
        refused(config, "rope_parameters: ", "factor must be", f"got {value!r}")
    for key in ("rope_theta", "partial_rotary_factor"):
        refused({**LLAMA, key: value}, f"{key} must be", f"got {value!r}")
        refused({**LLAMA, "rope_parameters": {key: value}}, f"{key} must be", f"got {value!r}")


SIZE_KEYS = "hidden_size", "num_attention_heads", "head_dim", "attention_head_dim", "kv_channels"


@pytest.mark.parametrize("value", [0, -1, 512.0, "512", True])
def test_from_hf_config_refuses_values_that_are_no_positive_integer(value):
    name = "original_max_position_embeddings"
    for parameters in (YARN, LLAMA3, LONGROPE):
        refused({**LLAMA, "rope_parameters": {**parameters, name: value}}, name, f"got {value!r}")
        refused({**LLAMA, name: value, "rope_parameters": parameters}, name, f"got {value!r}")
    for key in SIZE_KEYS:
        refused({**LLAMA, key: value, "rope_theta": 1e4}, f"{key} must be", f"got {value!r}")


TYPED = {"full_attention": {"rope_type": "default"}}
NO_BASE = {"rope_type": "default", "rope_theta": None}
NULL_BY_TYPE = {"full_attention": NO_BASE, "sliding_attention": {"rope_theta": 1e4}}
# Parts of the message, and what a small Llama has for rope_parameters or rope_scaling.
PARAMETERS = [
    ("beta_fast must not be below beta_slow = 2; got 1", {**YARN, "beta_fast": 1, "beta_slow": 2}),
    ("short_factor has 31 entries ... 32 pairs", {**LONGROPE, "short_factor": [1.0] * 31}),
    ("rope_parameters.full = 5 is not the dictionary ... rope_type", {"full": 5}),
    ("factor is missing, and so is original_max_position_embeddings", {"rope_type": "yarn"}),
    ("rope_parameters.rope_theta is null. Assign", NO_BASE),
    ("rope_parameters.full_attention.rope_theta is null", NULL_BY_TYPE),
    ("rope_parameters.factr = 4.0 is an unknown key; did you mean factor?", TYPED | {"factr": 4.0}),
]
SCALINGS = [
    ("= 1.0 and long_mscale = 2.0", {**LONGROPE, "short_mscale": 1.0, "long_mscale": 2.0}),
    ("rope_type 'warp' is not known ... 'yarn'", {"type": "warp"}),
    ("rope_scaling must be ... got 'linear'", "linear"),
    ("the base that NTK computes ... got 0.0", {"type": "dynamic", "alpha": 1e-320}),
    ("rope_scaling.factr = 4 is an unknown key; did you mean factor?", {**YARN, "factr": 4}),
    ("rope_scaling.a.hue = 5 is an unknown key; remove it if", {"a": {**YARN, "hue": 5}}),
]
SECTIONS = [
    ("qwen2_vl", [8, 12, 13], "[8, 12, 13] must sum to 32"),
    ("qwen2_vl", [16, 16.0, 0], "three integers or more; got [16, 16.0, 0]"),
    ("ernie4_5_vl_moe", [10, 12, 10], "[10, 12, 10]: height and width must be equal"),
    ("hunyuan_vl", [8, 8, 8, 8], "is not a rotation"),
]
FLAGS = [
    ("musicflamingo", {}, ": its angles are products of two positions"),
    ("nanochat", {}, ": it rotates by the negative angle"),
    ("kimi_linear", {}, ": it has no rotary embedding"),
    ("falcon", {"alibi": True}, " has alibi"),
    ("wav2vec2-bert", {}, " rotates only with position_embeddings_type = 'rotary'"),
    ("zamba2", {"use_mem_rope": False}, " rotates only with use_mem_rope = True; got Fa"),
    ("esm", {"position_embedding_type": "absolute"}, " has position_embedding_type = 'absolute'"),
]
ULTRABERT = {"model_type": "ultrabert", "rope_theta": [1e4, 1e5]}
ODD = {"model_type": "phi3", "head_dim": 50, "partial_rotary_factor": 0.3, "rope_scaling": YARN}
LOST_BASE = {"rope_parameters": NO_BASE, "rope_theta": 5e5}
NO_LATENT = {"model_type": "deepseek_v3", "qk_rope_head_dim": 0, "kv_lora_rank": 512}
SHARES = [("partial_rotary_factor", 0.5), ("rotary_pct", 0.5), ("rotary_dim", 32)]
REFUSED = [
    *((message, {"rope_parameters": value}) for message, value in PARAMETERS),
    *((message, {"rope_scaling": value}) for message, value in SCALINGS),
    *(
        (f"mrope_section ... {part}", {"model_type": name, "rope_scaling": {"mrope_section": n}})
        for name, n, part in SECTIONS
    ),
    *(
        (f"model_type {name!r}{reason}", {"model_type": name, "rope_theta": 1e4, **flag})
        for name, flag, reason in FLAGS
    ),
    *(("is not read by the code of model_type 'llama'", {key: share}) for key, share in SHARES),
    ("must be above 0 and at most 1; got 1.5", {**ODD, "partial_rotary_factor": 1.5}),
    ("rope_scaling ... base must not be 1", {"rope_theta": 1.0, "rope_scaling": YARN}),
    ("51 components", {"head_dim": 51, "rope_theta": 1e4}),
    ("15 rotated components must be even", ODD),
    ("64 components ... head of 32", {"model_type": "phi3", "head_dim": 32, "rotary_dim": 64}),
    ("layer_types is missing; rope_theta lists ... [10000.0, 100000.0]", ULTRABERT),
    ("one dictionary for each of", {"model_type": "gemma4_text", "rope_scaling": LINEAR}),
    ("rope_theta is null; set it to the base", {"rope_theta": None}),
    ("rope_theta is null, and rope_theta = 500000.0 at top level is not read", LOST_BASE),
    ("qk_rope_head_dim must be positive", NO_LATENT),
    ("attn_config.rope is false", {"attn_config": {"rope": False, "alibi": True}}),
    ("has alibi, and so no rotary embedding", {"attn_config": {"alibi": True}}),
]


def nest(levels, key, config):
    for _ in range(levels):
        config = {**LLAMA, key: config}
    return config


def double(levels):
    content = []
    for _ in range(levels):
        content = [content, content]
    return content


CYCLE = {**LLAMA}
CYCLE["text_config"] = CYCLE
BY_TYPE = {f"type_{i}": {"rope_type": "default"} for i in range(9)}
BEYOND = [
    ("rotated components of a head must be at most 4096", {"head_dim": 10**9}),
    ("depth of dictionaries and lists must be at most 32", nest(5000, "text_config", {})),
    ("depth of", CYCLE),
    ("entries of the configuration must be at most", {"labels": double(24)}),
    ("bits of an integer must be at most 1024", {"rope_theta": 10**5000}),
    ("by layer type must be at most 8", {"rope_parameters": BY_TYPE}),
    ("model_type must be a string; got ['llama']", {"model_type": ["llama"]}),
    ("rope_type 0 is not known", {"rope_scaling": {"rope_type": 0}}),
]
AXIAL = {"rope_parameters": {"rope_type": "axial"}}
ROTATING = {"vision_config": {"model_type": "pixtral"}, "other": {"rope_theta": 1e4}}
TOWER = {"patch_size": 16, "hidden_size": 1152}
# Without the sizes of a small Llama. Those of phi3 are not known.
MISSING_SIZES = [
    ("head_dim is missing", "phi3", {"partial_rotary_factor": 0.5}),
    ("and so is hidden_size; rope_type 'axial' divides it", "efficientloftr", AXIAL),
    ("max_position_embeddings is missing", "llama", {"rope_scaling": LLAMA3}),
    ("so is max_position_embeddings", "llama", {"rope_scaling": {**YARN, "factor": None}}),
    ("'gpt2' has no rotary embedding", "gpt2", {"n_embd": 768, "n_head": 12}),
    ("; pass only the part that has one: vision_config, other", "clip", {**ROTATING, "a": {}}),
    ("rotary_pct, rope_pct", "clip", dict.fromkeys(ROTATING)),
    ("'cosmos3_edge_vision' has no rotary embedding", "cosmos3_edge", TOWER),
    ("add the model_type of this part", None, {"hidden_size": 1280, "spatial_merge_size": 2}),
]


@pytest.mark.parametrize(
    ("message", "config"),
    [
        *((message, {**LLAMA, **keys}) for message, keys in (*REFUSED, *BEYOND)),
        *((message, {"model_type": name, **keys}) for message, name, keys in MISSING_SIZES),
    ],
)
def test_from_hf_config_refuses_what_no_rope_has(message, config):
    refused(config, *message.split(" ... "))


FILES = {
    b"{": "is no JSON",
    b"\xff{}": "is no JSON",
    b"[]": "got list",
    b'{"head_dim": ' + b"9" * 5000 + b"}": "is no JSON: Exceeds the limit",
    b" " * ((1 << 22) + 1): "has more than 4194304 bytes",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000: "is no JSON|depth of",
}


@pytest.mark.parametrize(("content", "message"), FILES.items(), ids=range(len(FILES)))
def test_from_hf_config_refuses_files_that_hold_no_configuration(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(RopeConfigError, match=message):
        from_hf_config(file)


def test_from_hf_config_of_no_file_says_how_to_fetch_it(tmp_path):
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(FileNotFoundError, match=re.escape("config.json")):
            from_hf_config(path)
    with pytest.raises(FileNotFoundError, match="rope_xp downloads nothing") as caught:
        from_hf_config("meta-llama/Llama-3.1-8B")
    assert "hf download meta-llama/Llama-3.1-8B config.json" in str(caught.value)


LISTED = type("Listed", (), {"to_dict": lambda self: []})()


@pytest.mark.parametrize("config", [None, 3, [("rope_theta", 1e4)], b"config.json", LISTED])
def test_from_hf_config_refuses_things_that_are_no_configuration(config):
    with pytest.raises(TypeError, match=rf"config must be .*; got {type(config).__name__}$"):
        from_hf_config(config)


def test_from_hf_config_reads_content_at_the_limits():
    many = dict.fromkeys(range(_limits.ENTRIES - len(LLAMA) - 1))
    assert from_hf_config({**LLAMA, "id2label": many}).base == 1e4
    layers = ["full_attention"] * _limits.LAYERS
    wide = {"head_dim": _limits.COMPONENTS, "layer_types": layers, "a": nest(20, "b", {})}
    assert from_hf_config({**LLAMA, **wide}).base == 1e4


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_from_hf_config_refuses_a_path_that_is_no_regular_file(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for config in (tmp_path, path):
        with pytest.raises(RopeConfigError, match="is no regular file"):
            from_hf_config(config)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_hidden_layers": 10**12},
        {"no_rope_layers": [0] * 99_999, "model_type": "smollm3"},
    ],
)
def test_inspect_makes_no_plan_of_sizes_beyond_the_limits(keys, tmp_path, capsys):
    """Sizes that from_hf_config does not read."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, **keys}))
    assert cli.main(["inspect", str(file)]) == 0
    _, plan = capsys.readouterr().out.split("\nno plan:\n")
    assert f"{next(iter(keys))} must be at most" in plan
