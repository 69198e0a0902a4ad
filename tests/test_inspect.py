"""python -m rope_xp inspect: the numbers by formulae of their own, and what is suspicious."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE, scaling
from rope_xp import __main__ as cli
from rope_xp._cli import plots

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SHORT, LONG = [1.0 + i / 100 for i in range(48)], [1.0 + i for i in range(48)]
PHI3: dict[str, Any] = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}
TYPES = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "layer_types": TYPES,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "head_dim": 256,
    "global_head_dim": 512,
    "layer_types": TYPES,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
}
DYNAMIC: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_scaling": {"type": "dynamic", "factor": 4.0},
}
UNCLEAR = {"model_type": "llama", "rope_theta": 1e4}
CONFIGS = {
    "llama": LLAMA,
    "phi3": PHI3,
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "deepseek": DEEPSEEK,
    "qwen2_vl": QWEN2_VL,
    "neox": NEOX,
    "dynamic": DYNAMIC,
    "unclear": UNCLEAR,
    "beam": {"model_type": "beam", "head_dim": 64, "max_position_embeddings": 1000},
}


@pytest.fixture
def report(tmp_path: Path, capsys):
    """Return the JSON object of a configuration."""

    def run(config: dict[str, Any], *options: str) -> dict[str, Any]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert cli.main(["inspect", str(tmp_path), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=_no_such_number)

    return run


def _no_such_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def with_rule(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, "rope_scaling": {**config["rope_scaling"], **changes}}


def waves(base: float, r: int) -> np.ndarray:
    return 2 * np.pi * base ** (2 * np.arange(r // 2) / r)


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
    found = report(LLAMA)
    assert (found["model_type"], found["checked"], found["part"]) == ("llama", True, None)
    (layers,) = found["layers"]
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
    assert found["suspicious"] == []


def test_longrope_shows_both_regimes(report) -> None:
    found = report(PHI3)
    (layers,) = found["layers"]
    assert layers["depends_on_length"]
    assert layers["attention_factor"] == pytest.approx(math.sqrt(1 + math.log(32, 4096)))
    short, long = layers["wavelengths"]
    assert (short["length"], long["length"]) == (4096, 131072)
    assert_wavelengths(short, waves(1e4, 96) * SHORT, 4096, 131072)
    assert_wavelengths(long, waves(1e4, 96) * LONG, 4096, 131072)
    (sentence,) = found["suspicious"]
    assert "for_length(n). Shown here for 4096 and 131072 tokens" in sentence


def test_a_length_chooses_the_regime(report) -> None:
    found = report(PHI3, "--length", "4097")
    (one,) = found["layers"][0]["wavelengths"]
    assert one["length"] == 4097
    assert_wavelengths(one, waves(1e4, 96) * LONG, 4096, 131072)
    assert found["suspicious"][0].endswith("Shown here for 4097 tokens")


def test_dynamic_is_shown_beyond_the_trained_length(report) -> None:
    trained, longer = report(DYNAMIC)["layers"][0]["wavelengths"]
    assert_wavelengths(trained, waves(1e4, 64), 2048, 2048)
    assert longer["length"] == 4096
    assert_wavelengths(longer, waves(1e4 * 5 ** (64 / 62), 64), 2048, 2048)


def test_two_types_of_layer(report) -> None:
    found = report(GEMMA3)
    assert (found["model_type"], found["part"]) == ("gemma3_text", "text_config")
    layers = {one["layer_type"]: one for one in found["layers"]}
    full, sliding = layers["full_attention"], layers["sliding_attention"]
    assert (full["count"], sliding["count"]) == (1, 5)
    assert (full["base"], sliding["base"]) == (1e6, 1e4)
    assert full["rule"] == {"name": "Linear", "fields": {"factor": 8.0}}
    assert sliding["rule"] is None
    # A linear rule does not know what length it extends.
    assert (full["original_context"], sliding["original_context"]) == (None, 131072)
    assert_wavelengths(full["wavelengths"][0], 8 * waves(1e6, 256), None, 131072)
    assert_wavelengths(sliding["wavelengths"][0], waves(1e4, 256), 131072, 131072)
    assert found["suspicious"] == []


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
    found = report(DEEPSEEK)
    (layers,) = found["layers"]
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
    assert found["suspicious"] == []


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
        ({"num_hidden_layers": 9}, []),
    ],
)
def test_layers_exempt_from_rotation(report, keys: dict[str, Any], expected: list[int]) -> None:
    config = {"model_type": "smollm3", "head_dim": 64, "rope_theta": 5e6, **keys}
    assert report(config)["layers_without_rotation"] == expected


def test_sizes_that_are_not_there(report) -> None:
    found = report(UNCLEAR)
    (layers,) = found["layers"]
    assert (layers["head_dim"], layers["pairs"], layers["extended_context"]) == (None, None, None)
    assert set(layers["wavelengths"][0].values()) == {None}
    head, context = found["suspicious"]
    assert head.startswith("head_dim is missing, and so is hidden_size or num_attention_heads")
    assert context.startswith("max_position_embeddings is missing")


@pytest.mark.parametrize("name", CONFIGS)
def test_keys_do_not_depend_on_the_model(report, name: str) -> None:
    ours, reference = report(CONFIGS[name]), report(LLAMA)
    assert set(ours) == set(reference)
    for layers in ours["layers"]:
        assert set(layers) == set(reference["layers"][0])
        for one in layers["wavelengths"]:
            assert set(one) == set(reference["layers"][0]["wavelengths"][0])


# --- suspicions ----------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
PLAIN = {"model_type": "qwen2", "head_dim": 64, "max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (with_rule(LLAMA, low_freq=1), "nothing reads rope_scaling.low_freq = 1"),
        (
            {**PLAIN, "rope_parameters": {"factor": 8.0}},
            "nothing reads rope_parameters.factor = 8.0",
        ),
        (
            {**GEMMA4, "rope_parameters": {**GEMMA4["rope_parameters"], "factor": 2.0}},
            "nothing reads rope_parameters.factor = 2.0",
        ),
        (
            {**GEMMA4, "rope_parameters": {"sliding_attention": {"rope_theta": 1e4, "beta": 1}}},
            "nothing reads rope_parameters.sliding_attention.beta = 1",
        ),
        (
            {**PLAIN, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling and rope_parameters are both there; only rope_scaling is read",
        ),
        (
            {**PLAIN, "rope_scaling": {**YARN, "factor": 2.0}},
            (
                "factor = 2.0, but max_position_embeddings / original_max_position_embeddings = "
                "32768 / 8192 = 4"
            ),
        ),
        (
            {
                **PLAIN,
                "original_max_position_embeddings": 16384,
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
            (
                "factor = 4.0, but max_position_embeddings / original_max_position_embeddings = "
                "32768 / 16384 = 2"
            ),
        ),
        (
            {**PLAIN, "rope_scaling": {"rope_type": "linear", "factor": 0.5}},
            "factor = 0.5 is below 1, and a rule is there to make contexts longer",
        ),
        (
            with_rule(LLAMA, original_max_position_embeddings=131072),
            (
                "original_max_position_embeddings = 131072 is not below max_position_embeddings = "
                "131072: no context is extended"
            ),
        ),
        (
            with_rule(LLAMA, original_max_position_embeddings=None),
            (
                "original_max_position_embeddings is missing, and taken to be "
                "max_position_embeddings = 131072"
            ),
        ),
        (
            {**PLAIN, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}},
            "rope_parameters.rope_theta = 1000000.0 is read and not rope_theta = 10000.0",
        ),
        (
            {**PLAIN, "original_max_position_embeddings": 16384, "rope_scaling": YARN},
            (
                "original_max_position_embeddings = 16384 is read and not "
                "rope_parameters.original_max_position_embeddings = 8192"
            ),
        ),
        (
            {**PLAIN, "rope_scaling": {**YARN, "type": "linear"}},
            "rope_type = 'yarn' is read and not type = 'linear'",
        ),
        (
            {**PLAIN, "head_dim": 25, "partial_rotary_factor": 0.3, "rope_theta": 1e4},
            "partial_rotary_factor = 0.3 of a head is 7.5 components, cut to 7",
        ),
        (
            {**PLAIN, "head_dim": 25, "partial_rotary_factor": 0.3, "rope_theta": 1e4},
            (
                "7 components, an odd number, are rotated as 8 by the same frequencies: "
                "base 37275.9 for 10000"
            ),
        ),
        (
            {**PLAIN, "model_type": "novel", "rope_theta": 1e4},
            (
                "model_type 'novel' is not among those that were checked: layout 'half' and the "
                "usual defaults are assumed"
            ),
        ),
        (
            {"head_dim": 64, "max_position_embeddings": 9, "rope_theta": 1e4},
            "the configuration has no model_type: layout 'half' and the usual defaults are assumed",
        ),
    ],
)
def test_suspicious(report, config: dict[str, Any], expected: str) -> None:
    assert expected in report(config)["suspicious"]


def test_a_contradiction_is_told_once(report) -> None:
    config = {**PLAIN, "original_max_position_embeddings": 16384, "rope_scaling": YARN}
    contradiction, factor = report(config)["suspicious"]
    assert "16384 is read and not" in contradiction
    assert factor.endswith("32768 / 16384 = 2")


@pytest.mark.parametrize(
    "config",
    [
        {**PLAIN, "rope_scaling": YARN},
        {**PLAIN, "rope_scaling": {}, "rope_parameters": YARN},
        {**CONFIGS["beam"], "rope_parameters": {"full_attention": None, "sliding_attention": {}}},
        {**PLAIN, "rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6, "rope_type": None}},
        {**PLAIN, "rope_scaling": {**YARN, "beta_fast": None, "unheard_of": None}},
        # What the configuration and its rule both say, and alike, is said once.
        {**PLAIN, "original_max_position_embeddings": 8192, "rope_scaling": YARN},
        {**PLAIN, "rope_parameters": {**YARN, "max_position_embeddings": 32768}},
        {**PLAIN, "head_dim": 100, "partial_rotary_factor": 0.14},  # 14.000000000000002 components
        {**QWEN2_VL, "model_type": "qwen2_vl_text"},
        GEMMA4,
        NEOX,
    ],
)
def test_not_suspicious(report, config: dict[str, Any]) -> None:
    assert report(config)["suspicious"] == []


# --- words ---------------------------------------------------------------------------------------


def test_in_words(tmp_path: Path, capsys) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(with_rule(LLAMA, finetuned=True)))
    assert cli.main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "all layers (32)" in text
    assert "rule:             Llama3(factor=8.0, low_freq_factor=1.0" in text
    assert "context:          8192 tokens, extended to 131072" in text
    assert text.endswith("suspicious:\n- nothing reads rope_scaling.finetuned = True\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("phi3", "short_factor=(48 numbers from 1 to 1.47)"),
        ("gemma3", "131072 tokens; the original is not known"),
        ("gemma4", "never turns            192 of 256 pairs"),
        ("deepseek", "64 of 192 components, the last; 32 pairs"),
        ("qwen2_vl", "3 numbers; pairs that read each: time 16, height 24, width 24"),
        ("neox", "24 of 96 components, the first; 12 pairs"),
        ("unclear", "all components of a head of unknown size"),
        ("beam", "full_attention: no positions"),
    ],
)
def test_words_of_a_model(tmp_path: Path, capsys, name: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    assert cli.main(["inspect", str(tmp_path)]) == 0
    assert expected in capsys.readouterr().out


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(with_rule(LLAMA, rope_type="warp")), "rope_type 'warp' is not known"),
        (json.dumps({"model_type": "bert", "hidden_size": 8}), "and so no rotary embedding"),
        (json.dumps({**LLAMA, "max_position_embeddings": -1}), "max_position_embeddings"),
        ("{", "is no JSON"),
        (b"\x89PNG", "is no JSON"),
        (None, "config.json: No such file or directory"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, capsys, content: Any, expected: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["inspect", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("inspect: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


@pytest.mark.parametrize("length", ["0", "-5", "many"])
def test_a_length_is_a_number_of_tokens(capsys, length: str) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["inspect", "config.json", "--length", length])
    assert stop.value.code == 2
    assert "--length" in capsys.readouterr().err


# --- drawings ------------------------------------------------------------------------------------


def draw(tmp_path: Path, config: dict[str, Any], name: str = "picture.png") -> tuple[int, Path]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    picture = tmp_path / name
    return cli.main(["inspect", str(tmp_path), "--plot", str(picture)]), picture


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma4", "deepseek", "dynamic"])
def test_plot(tmp_path: Path, capsys, name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws (pip install 'rope-xp[plot]')")
    status, picture = draw(tmp_path, CONFIGS[name])
    assert status == 0
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert "suspicious" in capsys.readouterr().out


def test_what_is_drawn() -> None:
    figure = pytest.importorskip(
        "matplotlib.figure", reason="matplotlib draws (pip install 'rope-xp[plot]')"
    )
    axes = figure.Figure().subplots()
    rule = scaling.Proportional(0.5)
    ropes = {"plain": RoPE(), "rule": RoPE(scaling=rule)}
    plots.draw_wavelengths(axes, ropes, 16, {"extended": 4000, "original": 100})
    assert axes.get_yscale() == "log"
    plain, ruled, standing, low, high = axes.get_lines()
    np.testing.assert_allclose(plain.get_ydata(), waves(1e4, 16), rtol=1e-13)
    assert plain.get_label() == "plain"
    np.testing.assert_allclose(ruled.get_ydata(), waves(1e4, 16)[:4], rtol=1e-13)
    assert ruled.get_label() == "rule; 4 of 8 pairs do not turn (triangles)"
    np.testing.assert_array_equal(standing.get_xdata(), [4, 5, 6, 7])
    assert [line.get_ydata()[0] for line in (low, high)] == [100, 4000]
    assert [text.get_text() for text in axes.texts] == [
        "original, 100 tokens",
        "extended, 4000 tokens",
    ]


def test_matplotlib_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, picture = draw(tmp_path, LLAMA)
    assert status == 1
    assert not picture.exists()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "needs matplotlib (pip install 'rope-xp[plot]')" in printed.err


def test_nothing_to_draw(tmp_path: Path, capsys) -> None:
    assert draw(tmp_path, UNCLEAR)[0] == 1
    assert "head_dim is not known" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws (pip install 'rope-xp[plot]')")
    assert draw(tmp_path, LLAMA, "picture.tune")[0] == 1
    assert "Format 'tune' is not supported" in capsys.readouterr().err
    assert draw(tmp_path, LLAMA, "nowhere/picture.png")[0] == 1
    assert "No such file or directory" in capsys.readouterr().err
