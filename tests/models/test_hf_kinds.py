"""from_hf_config: models and layers that do not rotate, families, and what must not be guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE, RopeConfigError, RopeError, from_hf_config
from rope_xp._arguments.fields import LAYOUTS
from rope_xp.scaling import Linear

PLAIN = {"rope_theta": 1e4, "head_dim": 64}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "falcon", "alibi": True}, "'falcon' has alibi"),
        ({"model_type": "granitemoehybrid"}, "only with position_embedding_type = 'rope'"),
        (
            {"model_type": "granitemoehybrid", "position_embedding_type": "nope"},
            "has position_embedding_type = 'nope'",
        ),
        ({"model_type": "wav2vec2-bert"}, "only with position_embeddings_type = 'rotary'"),
        ({"model_type": "zamba2", "use_mem_rope": False}, "only with use_mem_rope = True"),
        ({"model_type": "esm", "position_embedding_type": "absolute"}, "= 'absolute'"),
        (
            {"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative"},
            "position_embeddings_type = 'relative'",
        ),
        ({"model_type": "nemotron_h"}, "'nemotron_h': it has no rotary embedding"),
        ({"model_type": "kimi_linear"}, "'kimi_linear': it has no rotary embedding"),
    ],
)
def test_models_that_do_not_rotate(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RopeConfigError) as error:
        from_hf_config({**PLAIN, **config})
    assert message in str(error.value)


def test_flags_that_say_rotary() -> None:
    for config in (
        {"model_type": "falcon", "alibi": False},
        {"model_type": "granitemoehybrid", "position_embedding_type": "rope"},
        {"model_type": "zamba2", "use_mem_rope": True},
        {"model_type": "esm", "position_embedding_type": "rotary"},
    ):
        assert from_hf_config({**PLAIN, **config}) == RoPE(base=1e4, layout="half")


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [("cohere2", "interleaved"), ("afmoe", "half"), ("exaone4", "half"), ("exaone_moe", "half")],
)
def test_models_of_which_only_the_sliding_layers_rotate(model_type: str, layout: Any) -> None:
    rope = RoPE(base=1e4, layout=layout)
    config = {**PLAIN, "model_type": model_type}
    for window in ({}, {"sliding_window": 512}):
        result = from_hf_config({**config, **window})
        assert result == {"sliding_attention": rope, "full_attention": None}
    result = from_hf_config({**config, "sliding_window": None})
    assert (result == rope) == model_type.startswith("exaone")


def test_kimi_is_of_the_family_of_deepseek() -> None:
    part = {"model_type": "kimi_k2", "qk_rope_head_dim": 64, "rope_theta": 5e4}
    rope = RoPE(base=5e4, layout="interleaved_to_half", rotary_dim=64, rotary_offset=-64)
    assert from_hf_config(part) == rope
    assert from_hf_config({"model_type": "kimi_k25", "text_config": part}) == rope


UNKNOWN = {"model_type": "mine", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (UNKNOWN, "'mine' is not known"),
        ({**UNKNOWN, "qk_rope_head_dim": 64}, "'mine' is not known"),
        ({"rope_theta": 1e4}, "model_type is missing"),
    ],
)
def test_the_layout_of_unknown_models_is_never_guessed(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(RopeConfigError, match=f"{message}.*give layout="):
        from_hf_config(config)
    for layout in LAYOUTS:
        result = from_hf_config(config, layout=layout)
        latent = {"rotary_dim": 64, "rotary_offset": -64} if "qk_rope_head_dim" in config else {}
        assert result == RoPE(base=1e4, layout=layout, **latent)
    with pytest.raises(RopeError, match="layout must be one of .* got 'neox'"):
        from_hf_config(config, layout="neox")


def test_a_layout_that_is_given_is_the_one() -> None:
    """Even where the table says another, as for weights in Meta's own order."""
    for known in ({"model_type": "llama"}, {"model_type": "youtu", "rope_interleave": False}):
        for layout in LAYOUTS:
            assert from_hf_config({**PLAIN, **known}, layout=layout).layout == layout


def test_a_part_without_a_type_is_of_the_family_of_the_whole() -> None:
    text = {"hidden_size": 2560, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    result = from_hf_config({"model_type": "gemma3", "text_config": text})
    assert result == {
        "full_attention": RoPE(base=1e6, layout="half", scaling=Linear(8.0)),
        "sliding_attention": RoPE(base=1e4, layout="half"),
    }


def test_llama_4_scout_has_a_step_for_a_ramp() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    rope = from_hf_config({"model_type": "llama4_text", "rope_theta": 5e5, "rope_scaling": scaling})
    ratio = RoPE(base=5e5).frequencies(128) / rope.frequencies(128)
    turns = 8192 / RoPE(base=5e5).wavelengths(128)
    # Products and quotients of float64 by powers of two are exact.
    np.testing.assert_array_equal(ratio, np.where(turns >= 1.0, 1.0, 16.0))
