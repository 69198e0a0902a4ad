"""python -m rope_xp inspect: whole reports of real models, their numbers, and RoPEs to paste."""

import contextlib
import io
import json
import math

import numpy as np
import pytest
from support import inspected
from support.inspected import BEAM, CONFIGS, GEMMA4, GOLDEN, LLAMA, REAL, UNCLEAR, paste, with_rule

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


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GEMMA4, "turn once in 6.28 to inf tokens; 192 less than once in 131072; 192 never\n"),
        (BEAM, "\nfull_attention = None\n\n"),
        (with_rule(LLAMA, finetuned=True), "\nsuspicious:\n- nothing reads rope_scaling.finetuned"),
    ],
)
def test_words_of_a_report_tell_what_never_turns(tmp_path, capsys, config, expected):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))
    assert cli.main(["inspect", str(path)]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", ["dynamic", "gemma4", "beam", "phi_3_mini_128k"])
def test_reported_wavelengths_are_those_of_the_ropes(report, name):
    """Those that the reports of real models do not show to the last digit."""
    result = report(CONFIGS[name])
    for layers, rope in zip(result["layers"], paste(result).values(), strict=True):
        assert (rope is None) == (layers["wavelengths"] == [])
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
        ({"no_rope_layers": [1, 0, 1, 0], "num_hidden_layers": 4}, [1, 3]),
        ({"no_rope_layers": [], "num_hidden_layers": 9}, [3, 7]),
        ({"no_rope_layers": None, "no_rope_layer_interval": 3, "num_hidden_layers": 7}, [2, 5]),
        ({"model_type": "llama", "num_hidden_layers": 9}, []),
    ],
)
def test_layers_exempt_from_rotation_are_in_the_plan(report, keys, expected):
    sizes = {"layer_types": ["full_attention"] * keys["num_hidden_layers"], "head_dim": 64}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    plan = report({"model_type": "smollm3", "rope_theta": 5e6, **sizes, **keys})["plan"]
    assert [i for layers in plan if layers["rope"] is None for i in layers["layers"]] == expected


def test_sizes_that_a_configuration_lacks_are_reported_as_missing(report):
    result = report(UNCLEAR)
    (layers,) = result["layers"]
    assert (layers["head_dim"], layers["extended_context"]) == (None, None)
    assert set(layers["wavelengths"][0].values()) == {None}
    head, context = result["suspicious"]
    assert head.startswith("head_dim and hidden_size or num_attention_heads are missing")
    assert context.startswith("max_position_embeddings is missing")
    config = {k: v for k, v in CONFIGS["gemma4"].items() if k != "global_head_dim"}
    full, sliding = report({**config, "per_layer_config": {"5": {"head_dim": 512}}})["layers"]
    assert (full["head_dim"], sliding["head_dim"]) == (512, 256)
    pytest.importorskip("transformers")  # whose class has 32 heads, and a width of 4096
    assert report({"model_type": "llama", "hidden_size": 2048})["layers"][0]["head_dim"] == 64


@pytest.mark.parametrize("name", CONFIGS)
def test_pasted_rope_is_that_of_the_configuration(report, name):
    expected = from_hf_config(CONFIGS[name])
    ropes = expected if isinstance(expected, dict) else {"rope": expected}
    assert paste(report(CONFIGS[name])) == ropes


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
