"""python -m rope_xp inspect of every model type of transformers, as its class is by default."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rope_xp
from rope_xp import RopeError, from_hf_config
from rope_xp._cli import config_report, config_words, reading

SIZES = ("model_type", "text_config", "vision_config")
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
"""Keys that nothing reads, rightly told of."""
OF_PARTS = ("gemma4_assistant", "nougat")
"""Configurations that cannot be made without those of their parts."""


def configurations() -> list[dict[str, Any]]:
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    found = []
    for name in mapping:
        if name in OF_PARTS:
            continue
        whole = mapping[name]().to_dict()
        found += [whole, {key: whole[key] for key in SIZES if key in whole}]
    return found


@pytest.mark.exhaustive
def test_every_model_type_is_reported_and_pasted(capsys) -> None:
    reported = 0
    for config in configurations():
        try:
            expected = from_hf_config(config)
        except RopeError:
            continue
        name = config["model_type"]
        found = config_report.build_report(reading.read_config(config))
        json.dumps(found, allow_nan=False)
        config_words.show(found)
        pasted: dict[str, Any] = {"rope_xp": rope_xp}
        for layers in found["layers"]:
            exec(layers["python"], pasted)
        made = {key: pasted[key] for key in pasted if key not in ("rope_xp", "__builtins__")}
        assert made == (expected if isinstance(expected, dict) else {"rope": expected}), name
        unread = UNREAD.get(name.removesuffix("_text"), "(none)")
        told = [text for text in found["suspicious"] if "nothing reads" in text]
        assert all(unread in text for text in told), (name, told)
        reported += 1
    assert reported > 500
    assert "suspicious" in capsys.readouterr().out
