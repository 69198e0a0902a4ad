"""python -m rope_xp inspect: the numbers, by formulae of their own, and the drawings."""

import math

import numpy as np
import pytest
from support import inspected
from support.inspected import CONFIGS, UNCLEAR, paste

report = pytest.fixture(inspected.build_reporter)


def waves(base, r):
    return 2 * np.pi * base ** (2 * np.arange(r // 2) / r)


@pytest.mark.parametrize("name", ["dynamic", "gemma4", "beam", "phi_3_mini_128k"])
def test_reported_wavelengths_are_those_of_the_ropes(report, name):
    """Those that the reports of real models do not show to the last digit."""
    result = report(CONFIGS[name])
    for layers, rope in zip(result["layers"], paste(result).values(), strict=True):
        assert layers["rotated"] == bool(layers["wavelengths"])
        for one in layers["wavelengths"]:
            turns = rope.for_length(one["length"] or 1).wavelengths(layers["head_dim"])
            slowest = turns.max() if np.isfinite(turns).all() else None
            assert (one["fastest"], one["slowest"]) == (turns.min(), slowest)
            assert one["standing_pairs"] == np.isinf(turns).sum()
            for which in ("original", "extended"):
                context = layers[f"{which}_context"]
                slower = None if context is None else (turns > context).sum()
                assert one[f"below_one_turn_in_{which}"] == slower
    lengths = [one["length"] for layers in result["layers"] for one in layers["wavelengths"]]
    shown = {"dynamic": [2048, 4096], "phi_3_mini_128k": [4096, 131072]}
    assert lengths == shown.get(name, [None] * len(lengths))


def test_reported_factors_are_those_of_the_formula(report):
    (phi3,), (deepseek,) = (
        report(CONFIGS[name])["layers"] for name in ("phi_3_mini_128k", "deepseek_v3")
    )
    assert phi3["attention_factor"] == pytest.approx(math.sqrt(1 + math.log(32, 4096)))
    assert deepseek["softmax_scale"] == pytest.approx((0.1 * math.log(40) + 1) ** 2)


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
def test_layers_exempt_from_rotation_are_reported(report, keys, expected):
    config = {"model_type": "smollm3", "head_dim": 64, "rope_theta": 5e6, **keys}
    assert report(config)["layers_without_rotation"] == expected


def test_sizes_that_a_configuration_lacks_are_reported_as_missing(report):
    result = report(UNCLEAR)
    (layers,) = result["layers"]
    assert (layers["head_dim"], layers["pairs"], layers["extended_context"]) == (None, None, None)
    assert set(layers["wavelengths"][0].values()) == {None}
    head, context = result["suspicious"]
    assert head.startswith("head_dim and hidden_size or num_attention_heads are missing")
    assert context.startswith("max_position_embeddings is missing")
    config = {k: v for k, v in CONFIGS["gemma4"].items() if k != "global_head_dim"}
    full, sliding = report({**config, "per_layer_config": {"5": {"head_dim": 512}}})["layers"]
    assert (full["head_dim"], sliding["head_dim"]) == (512, 256)
