"""from_hf_config and inspect with configurations that are too large, too deep or of wrong kinds."""

import json
import os

import pytest
from support.configs import LLAMA

from rope_xp import RoPE, RopeConfigError, from_hf_config, positions
from rope_xp import __main__ as cli
from rope_xp.hf import _limits

HEAD = {**LLAMA, "head_dim": 64}
LISTS = {"short_factor": [1.0] * 99_999, "long_factor": [1.0] * 99_999, "rope_type": "longrope"}
KEYS = dict.fromkeys(map(str, range(20_000)))
CYCLE = {**HEAD}
CYCLE["text_config"] = CYCLE


def nest(levels, key):
    config = HEAD
    for _ in range(levels):
        config = {**HEAD, key: config}
    return config


def double(levels):
    content = []
    for _ in range(levels):
        content = [content, content]
    return content


# What from_hf_config says, and the configuration.
BEYOND = [
    ("rotated components of a head must be at most 4096", {**LLAMA, "head_dim": 10**9}),
    ("depth of dictionaries and lists must be at most 32", nest(5000, "text_config")),
    ("depth of", CYCLE),
    ("entries of the configuration must be at most", {**HEAD, "labels": double(24)}),
    ("bits of an integer must be at most 1024", {**HEAD, "rope_theta": 10**5000}),
    ("entries of rope_scaling must be at most 1024", {**HEAD, "rope_scaling": KEYS}),
    ("entries of the configuration must be at most 1024", {**HEAD, **KEYS}),
    ("entries of rope_scaling.short_factor", {**HEAD, "rope_scaling": LISTS}),
    (
        "entries of rope_parameters by layer type must be at most 8",
        {**HEAD, "rope_parameters": {f"type_{i}": {"rope_type": "default"} for i in range(9)}},
    ),
    ("model_type must be a string; got ['llama']", {**HEAD, "model_type": ["llama"]}),
    ("must have strings as keys; got one of type int", {**HEAD, 5: 1}),
    ("rope_type 0 is not known", {**HEAD, "rope_scaling": {"rope_type": 0}}),
]


class Configuration:
    def __init__(self, content):
        self.to_dict = lambda: content


@pytest.mark.parametrize("case", BEYOND, ids=lambda case: case[0][:40])
def test_content_beyond_the_limits_is_a_config_error(case):
    message, config = case
    for kind in (dict, Configuration):
        with pytest.raises(RopeConfigError) as error:
            from_hf_config(kind(config))
        assert message in str(error.value)


def test_content_at_the_limits_is_read():
    many = dict.fromkeys(range(_limits.ENTRIES - len(HEAD) - 1))
    assert from_hf_config({**HEAD, "id2label": many}) == RoPE(layout="half")
    layers = ["full_attention"] * _limits.LAYERS
    assert from_hf_config({**HEAD, "layer_types": layers, "a": nest(20, "b")}).base == 1e4
    wide = from_hf_config({**LLAMA, "head_dim": _limits.COMPONENTS, "rope_theta": 1e4})
    assert wide == RoPE(layout="half")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is no JSON|depth of"),
        ('{"head_dim": ' + "9" * 5000 + "}", "is no JSON: Exceeds the limit"),
        (" " * (_limits.FILE_BYTES + 1), "has more than 4194304 bytes"),
    ],
    ids=["deep", "digits", "large"],
)
def test_text_beyond_the_limits_is_a_config_error(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(RopeConfigError, match=message):
        from_hf_config(file)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_path_that_is_no_regular_file_is_a_config_error(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for config in (tmp_path, path):
        with pytest.raises(RopeConfigError, match="is no regular file"):
            from_hf_config(config)


# What from_hf_config does not read, and inspect does.
REPORTED = [
    ("num_hidden_layers must be at most", {**HEAD, "num_hidden_layers": 10**12}),
    (
        "entries of no_rope_layers must be at most",
        {**HEAD, "model_type": "smollm3", "no_rope_layers": [0] * 99_999},
    ),
]


@pytest.mark.parametrize(("message", "config"), REPORTED)
def test_sizes_beyond_the_limits_are_an_error_of_inspect(message, config, tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert cli.main(["inspect", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"inspect: {message}")


def test_part_of_a_configuration_that_is_a_path_is_not_read(tmp_path):
    (tmp_path / "config.json").write_text('{"spatial_merge_size": 2}')
    config = {"model_type": "qwen2_vl", "vision_config": str(tmp_path)}
    with pytest.raises(TypeError, match="config must be a dictionary"):
        positions.mrope_from_ids([[1, 2]], {"image_grid_thw": [[1, 2, 2]]}, config)
