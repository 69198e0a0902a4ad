"""python -m rope_xp inspect of real models: whole reports, and RoPEs to paste."""

import contextlib
import io
import json

import pytest
from support import inspected
from support.inspected import CONFIGS, GOLDEN, LLAMA, REAL, paste

from rope_xp import RopeError, from_hf_config
from rope_xp import __main__ as cli
from rope_xp._cli import inspect_config, reading

report = pytest.fixture(inspected.build_reporter)


@pytest.mark.parametrize("name", REAL)
def test_report_of_a_real_model_is_as_it_was_read(name):
    """If it changes by intent, make it as CONTRIBUTING.md says; then read it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["inspect", str(GOLDEN / "configs" / f"{name}.json")]) == 0
    expected = (GOLDEN / "reports" / f"{name}.txt").read_text("utf-8")
    assert printed.getvalue() == expected
    assert "\nsuspicious: nothing; all rotary keys" in expected


def test_base_that_a_sparse_file_omits_is_said_to_be_a_default(report):
    """gemma-3-4b-it has a text_config of six keys."""
    with_base = {**REAL["gemma_3_4b"]["text_config"], "rope_theta": 1e6}
    full, sliding = report(with_base)["layers"]
    assert (full["base_by_default"], sliding["base_by_default"]) == (False, True)
    assert report(LLAMA)["by_default"] == {}


@pytest.mark.parametrize("model_type", ["gemma3_text", "modernbert"])
def test_counts_of_layers_of_each_type_are_those_of_transformers(model_type):
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    key, _, _ = reading.PERIODS[model_type.removesuffix("_text")]
    for sizes in ({}, {"num_hidden_layers": 7}, {"num_hidden_layers": 9, key: 4}):
        types = mapping[model_type](**sizes).layer_types
        result = reading.read_config({"model_type": model_type, **sizes})
        for label in ("full_attention", "sliding_attention"):
            count = reading.count_layers(result.part, result.model, label)
            assert count == types.count(label)


# --- to paste ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_pasted_rope_is_that_of_the_configuration(report, name):
    expected = from_hf_config(CONFIGS[name])
    ropes = expected if isinstance(expected, dict) else {"rope": expected}
    assert paste(report(CONFIGS[name])) == ropes


# --- transformers --------------------------------------------------------------------------------

UNREAD = {
    "granite_swa": "layer_rope_theta",  # a base for each layer, and not for each type
    "granitemoe_swa": "layer_rope_theta",
    "muse_glimmer": "layer_rope_theta",
    "muse_spark": "layer_rope_theta",
    "molmo2": "rope_scaling_layers",
    "edgetam_video": "memory_attention_rope",  # sizes of the grid, and dropout
    "sam2_video": "memory_attention_rope",
    "sam3_tracker_video": "memory_attention_rope",
}
"""Keys that nothing reads, and that are reported rightly."""
OF_PARTS = ("gemma4_assistant", "nougat")
"""Configurations that cannot be made without those of their parts."""


@pytest.mark.slow
def test_every_model_type_of_transformers_is_reported_and_pasted(capsys):
    """As its class is by default, and with its sizes left out."""
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    wholes = [mapping[name]().to_dict() for name in mapping if name not in OF_PARTS]
    sizes = ("model_type", "text_config", "vision_config")
    reported = 0
    for config in [*wholes, *({k: c[k] for k in sizes if k in c} for c in wholes)]:
        try:
            expected = from_hf_config(config)
        except RopeError:
            continue
        name = config["model_type"]
        result = inspect_config.build_report(reading.read_config(config))
        json.dumps(result, allow_nan=False)
        inspect_config.print_report(result)
        ropes = expected if isinstance(expected, dict) else {"rope": expected}
        assert paste(result) == ropes, name
        unread = UNREAD.get(name.removesuffix("_text"), "(none)")
        sentences = [text for text in result["suspicious"] if "nothing reads" in text]
        assert all(unread in text for text in sentences), (name, sentences)
        reported += 1
    assert reported > 500
    assert "suspicious" in capsys.readouterr().out
