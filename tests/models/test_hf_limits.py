"""from_hf_config and inspect with configurations that are too large, too deep or of wrong kinds."""

import json
import os

import pytest
from support.configs import LLAMA

from rope_xp import RoPE, RopeConfigError, from_hf_config
from rope_xp import __main__ as cli
from rope_xp.hf import _limits

HEAD = {**LLAMA, "head_dim": 64}
BY_TYPE = {f"type_{i}": {"rope_type": "default"} for i in range(9)}
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


BEYOND = {
    "rotated components of a head must be at most 4096": {**LLAMA, "head_dim": 10**9},
    "depth of dictionaries and lists must be at most 32": nest(5000, "text_config"),
    "depth of": CYCLE,
    "entries of the configuration must be at most": {**HEAD, "labels": double(24)},
    "bits of an integer must be at most 1024": {**HEAD, "rope_theta": 10**5000},
    "by layer type must be at most 8": {**HEAD, "rope_parameters": BY_TYPE},
    "model_type must be a string; got ['llama']": {**HEAD, "model_type": ["llama"]},
    "rope_type 0 is not known": {**HEAD, "rope_scaling": {"rope_type": 0}},
}


@pytest.mark.parametrize("message", BEYOND)
def test_from_hf_config_refuses_content_beyond_the_limits(message):
    with pytest.raises(RopeConfigError) as error:
        from_hf_config(BEYOND[message])
    assert message in str(error.value)


def test_from_hf_config_reads_content_at_the_limits():
    many = dict.fromkeys(range(_limits.ENTRIES - len(HEAD) - 1))
    assert from_hf_config({**HEAD, "id2label": many}) == RoPE(layout="half")
    layers = ["full_attention"] * _limits.LAYERS
    assert from_hf_config({**HEAD, "layer_types": layers, "a": nest(20, "b")}).base == 1e4
    wide = from_hf_config({**LLAMA, "head_dim": _limits.COMPONENTS, "rope_theta": 1e4})
    assert wide == RoPE(layout="half")


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


FLAGS = {"model_type": "smollm3", "no_rope_layers": [0] * 99_999}
REPORTED = [("num_hidden_layers", {"num_hidden_layers": 10**12}), ("no_rope_layers", FLAGS)]


@pytest.mark.parametrize(("key", "keys"), REPORTED)
def test_inspect_makes_no_plan_of_sizes_beyond_the_limits(key, keys, tmp_path, capsys):
    """Sizes that from_hf_config does not read."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**HEAD, **keys}))
    assert cli.main(["inspect", str(file)]) == 0
    _, plan = capsys.readouterr().out.split("\nno plan:\n")
    assert f"{key} must be at most" in plan
