"""python -m rope_xp inspect: the numbers, by formulae of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.inspected import (
    CONFIGS,
    DEEPSEEK,
    DYNAMIC,
    GEMMA3,
    GEMMA4,
    LLAMA,
    LONG,
    NEOX,
    PHI3,
    QWEN2_VL,
    SHORT,
    UNCLEAR,
    reporter,
    waves,
)

report = pytest.fixture(reporter)


def assert_wavelengths(
    found: dict[str, Any], expected: np.ndarray, original: int | None, extended: int
) -> None:
    # float64 powers and quotients in another order: a few roundings.
    assert found["fastest"] == pytest.approx(expected.min(), rel=1e-13)
    if np.isfinite(expected).all():
        assert found["slowest"] == pytest.approx(expected.max(), rel=1e-13)
    else:
        assert found["slowest"] is None
    assert found["standing_pairs"] == np.isinf(expected).sum()
    below = None if original is None else (expected > original).sum()
    assert found["below_one_turn_in_original"] == below
    assert found["below_one_turn_in_extended"] == (expected > extended).sum()


# --- the numbers ---------------------------------------------------------------------------------


def test_llama3(report) -> None:
    result = report(LLAMA)
    assert (result["model_type"], result["checked"], result["part"]) == ("llama", True, None)
    (layers,) = result["layers"]
    assert layers["rule"] == {
        "name": "Llama3",
        "fields": {k: v for k, v in LLAMA["rope_scaling"].items() if k != "rope_type"},
    }
    assert (layers["layer_type"], layers["count"], layers["layout"]) == (None, 32, "half")
    assert (layers["head_dim"], layers["rotary_dim"], layers["pairs"]) == (128, 128, 64)
    assert (layers["base"], layers["pairs_per_component"]) == (500000.0, None)
    assert (layers["original_context"], layers["extended_context"]) == (8192, 131072)
    plain = waves(5e5, 128)
    smooth = (8192 / plain - 1) / 3
    blended = 1 / ((1 - smooth) / (8 * plain) + smooth / plain)
    expected = np.where(plain > 8192, 8 * plain, np.where(plain < 8192 / 4, plain, blended))
    (one,) = layers["wavelengths"]
    assert one["length"] is None
    assert_wavelengths(one, expected, 8192, 131072)
    # Meta's own file, whose factor is half of what the lengths say
    assert result["suspicious"] == []


def test_longrope_shows_both_regimes(report) -> None:
    result = report(PHI3)
    (layers,) = result["layers"]
    assert layers["depends_on_length"]
    assert layers["attention_factor"] == pytest.approx(math.sqrt(1 + math.log(32, 4096)))
    short, long = layers["wavelengths"]
    assert (short["length"], long["length"]) == (4096, 131072)
    assert_wavelengths(short, waves(1e4, 96) * SHORT, 4096, 131072)
    assert_wavelengths(long, waves(1e4, 96) * LONG, 4096, 131072)
    assert result["suspicious"] == []
    (sentence,) = result["notes"]
    assert "for_length(n). Shown here for 4096 and 131072 tokens" in sentence


def test_a_length_chooses_the_regime(report) -> None:
    result = report(PHI3, "--length", "4097")
    (one,) = result["layers"][0]["wavelengths"]
    assert one["length"] == 4097
    assert_wavelengths(one, waves(1e4, 96) * LONG, 4096, 131072)
    assert result["notes"][0].endswith("Shown here for 4097 tokens")


def test_dynamic_is_shown_beyond_the_trained_length(report) -> None:
    trained, longer = report(DYNAMIC)["layers"][0]["wavelengths"]
    assert_wavelengths(trained, waves(1e4, 64), 2048, 2048)
    assert longer["length"] == 4096
    assert_wavelengths(longer, waves(1e4 * 5 ** (64 / 62), 64), 2048, 2048)


def test_two_types_of_layer(report) -> None:
    result = report(GEMMA3)
    assert (result["model_type"], result["part"]) == ("gemma3_text", "text_config")
    layers = {one["layer_type"]: one for one in result["layers"]}
    full, sliding = layers["full_attention"], layers["sliding_attention"]
    assert (full["count"], sliding["count"]) == (1, 5)
    assert (full["base"], sliding["base"]) == (1e6, 1e4)
    assert full["rule"] == {"name": "Linear", "fields": {"factor": 8.0}}
    assert sliding["rule"] is None
    # A linear rule does not know what length it extends.
    assert (full["original_context"], sliding["original_context"]) == (None, 131072)
    assert_wavelengths(full["wavelengths"][0], 8 * waves(1e6, 256), None, 131072)
    assert_wavelengths(sliding["wavelengths"][0], waves(1e4, 256), 131072, 131072)
    assert result["suspicious"] == []


@pytest.mark.parametrize("written", ["global_head_dim", "per_layer_config"])
def test_pairs_that_stand_still(report, written: str) -> None:
    config = {key: value for key, value in GEMMA4.items() if key != "global_head_dim"}
    values = {"global_head_dim": 512, "per_layer_config": {"5": {"head_dim": 512}}}
    full, sliding = report({**config, written: values[written]})["layers"]
    assert (full["head_dim"], sliding["head_dim"]) == (512, 256)
    expected = waves(1e6, 512)
    expected[64:] = np.inf
    assert_wavelengths(full["wavelengths"][0], expected, 131072, 131072)
    assert full["wavelengths"][0]["standing_pairs"] == 192


def test_latent_attention(report) -> None:
    result = report(DEEPSEEK)
    (layers,) = result["layers"]
    assert (layers["head_dim"], layers["rotary_dim"], layers["rotary_offset"]) == (192, 64, -64)
    assert layers["layout"] == "interleaved_to_half"
    assert layers["attention_factor"] == 1.0
    assert layers["softmax_scale"] == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    plain = waves(1e4, 64)
    low, high = (
        rounded(32 * math.log(4096 / (2 * math.pi * turns)) / math.log(1e4))
        for rounded, turns in ((math.floor, 32), (math.ceil, 1))
    )
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    expected = 1 / ((1 - ramp) / plain + ramp / (40 * plain))
    assert_wavelengths(layers["wavelengths"][0], expected, 4096, 163840)
    assert result["suspicious"] == []


def test_components_of_a_position(report) -> None:
    (layers,) = report(QWEN2_VL)["layers"]
    assert layers["pairs_per_component"] == [16, 24, 24]
    assert_wavelengths(layers["wavelengths"][0], waves(1e6, 128), 32768, 32768)


def test_a_part_of_the_head(report) -> None:
    (layers,) = report(NEOX)["layers"]
    assert (layers["head_dim"], layers["rotary_dim"], layers["pairs"]) == (96, 24, 12)
    assert_wavelengths(layers["wavelengths"][0], waves(1e4, 24), 2048, 2048)


def test_layers_without_positions(report) -> None:
    full, sliding = report(CONFIGS["beam"])["layers"]
    assert (full["layer_type"], full["rotated"], full["layout"]) == ("full_attention", False, None)
    assert full["wavelengths"] == []
    assert sliding["rotated"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"no_rope_layers": [1, 0, 1, 0]}, [1, 3]),
        ({"no_rope_layers": [], "num_hidden_layers": 9}, [3, 7]),
        ({"no_rope_layers": None, "no_rope_layer_interval": 3, "num_hidden_layers": 7}, [2, 5]),
        ({"num_hidden_layers": 9}, [3, 7]),  # as the class of the model has it
        ({"model_type": "llama", "num_hidden_layers": 9}, []),
        ({"model_type": "llama4_text"}, list(range(3, 48, 4))),
    ],
)
def test_layers_exempt_from_rotation(report, keys: dict[str, Any], expected: list[int]) -> None:
    config = {"model_type": "smollm3", "head_dim": 64, "rope_theta": 5e6, **keys}
    assert report(config)["layers_without_rotation"] == expected


def test_sizes_that_are_not_there(report) -> None:
    result = report(UNCLEAR)
    (layers,) = result["layers"]
    assert (layers["head_dim"], layers["pairs"], layers["extended_context"]) == (None, None, None)
    assert set(layers["wavelengths"][0].values()) == {None}
    head, context = result["suspicious"]
    assert head.startswith("head_dim is missing, and so is hidden_size or num_attention_heads")
    assert context.startswith("max_position_embeddings is missing")


def test_keys_do_not_depend_on_the_model(report) -> None:
    reference = report(LLAMA)
    for config in CONFIGS.values():
        result = report(config)
        assert set(result) == set(reference)
        for layers in result["layers"]:
            assert set(layers) == set(reference["layers"][0])
            for one in layers["wavelengths"]:
                assert set(one) == set(reference["layers"][0]["wavelengths"][0])
