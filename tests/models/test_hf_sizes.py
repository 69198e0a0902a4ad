"""Sizes that configurations leave out: those of the classes of transformers."""

from __future__ import annotations

import pytest

from rope_xp import RoPE, from_hf_config
from rope_xp.hf import _text_models


def test_sizes_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    for name, sizes in _text_models.SIZES.items():
        written = next(n for n in (f"{name}_text", name) if n in auto.CONFIG_MAPPING)
        found = auto.CONFIG_MAPPING[written]().to_dict()
        assert {key: found[key] for key in sizes} == sizes, name


def test_a_head_that_does_not_follow_from_the_width() -> None:
    sparse = {"model_type": "glm4", "hidden_size": 5120, "num_attention_heads": 64}
    assert from_hf_config(sparse) == RoPE(base=1e4, layout="interleaved", rotary_dim=64)
    assert from_hf_config({**sparse, "head_dim": 80}).rotary_dim == 40


def test_a_head_that_follows_from_the_width() -> None:
    sparse = {"model_type": "phi", "hidden_size": 2560}
    assert from_hf_config(sparse).rotary_dim == 40  # of 2560 / 32
