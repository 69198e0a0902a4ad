"""python -m rope_xp inspect of real models: whole reports, and RoPEs to paste."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import golden
from support.inspected import CONFIGS, LLAMA, reporter
from support.terminals import shown

import rope_xp
from rope_xp import __main__ as cli
from rope_xp import from_hf_config
from rope_xp._cli import layer_counts, python_text, reading

HERE = Path(golden.__path__[0])
MODELS = sorted(path.stem for path in (HERE / "configs").glob("*.json"))
report = pytest.fixture(reporter)


def config(name: str) -> dict[str, Any]:
    return json.loads((HERE / "configs" / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", MODELS)
def test_a_report_is_as_it_was_read(name: str) -> None:
    """If it changes by intent, ``python tests/support/golden/make_reports.py``; then read it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["inspect", str(HERE / "configs" / f"{name}.json")]) == 0
    assert printed.getvalue() == (HERE / "reports" / f"{name}.txt").read_text("utf-8")


def test_twelve_models_without_a_suspicion(report) -> None:
    assert len(MODELS) == 12
    assert [odd for name in MODELS for odd in report(config(name))["suspicious"]] == []


@pytest.mark.parametrize(
    ("name", "original", "extended"),
    [
        ("deepseek_v3", 4096, 163840),
        ("glm_4_9b_0414", 32768, 32768),
        ("gpt_oss_20b", 4096, 131072),
        ("llama_3_1_8b", 8192, 131072),
        ("llama_4_scout", 8192, 10485760),
        ("mistral_7b_v0_3", 32768, 32768),
        ("modernbert_base", 8192, 8192),
        ("phi_3_mini_128k", 4096, 131072),
        ("qwen2_5_7b_yarn", 32768, 131072),
        ("qwen2_vl_7b", 32768, 32768),
        ("qwen3_30b_a3b", 40960, 40960),
    ],
)
def test_contexts_are_those_of_the_models(report, name: str, original: int, extended: int) -> None:
    for layers in report(config(name))["layers"]:
        assert (layers["original_context"], layers["extended_context"]) == (original, extended)


def test_what_a_sparse_file_leaves_out(report) -> None:
    """gemma-3-4b-it has a text_config of six keys."""
    found = report(config("gemma_3_4b"))
    assert found["by_default"] == {"head_dim": 256, "max_position_embeddings": 131072}
    full, sliding = found["layers"]
    assert (full["head_dim"], full["count"], sliding["count"]) == (256, 5, 29)
    assert (full["base_by_default"], sliding["base_by_default"]) == (True, True)
    assert (full["base"], sliding["base"]) == (1e6, 1e4)
    written = {**config("gemma_3_4b")["text_config"], "rope_theta": 1e6}
    full, sliding = report(written)["layers"]
    assert (full["base_by_default"], sliding["base_by_default"]) == (False, True)
    assert report(LLAMA)["by_default"] == {}


def test_layers_that_do_not_rotate(report) -> None:
    found = report(config("llama_4_scout"))
    assert found["layers_without_rotation"] == list(range(3, 48, 4))
    assert found["layers"][0]["count"] == 48


@pytest.mark.parametrize("model_type", ["gemma3_text", "modernbert"])
def test_layers_of_each_type_are_counted_as_transformers_does(model_type: str) -> None:
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    key, _, _ = layer_counts.PERIODS[model_type.removesuffix("_text")]
    for sizes in ({}, {"num_hidden_layers": 7}, {"num_hidden_layers": 9, key: 4}):
        types = mapping[model_type](**sizes).layer_types
        found = reading.read_config({"model_type": model_type, **sizes})
        for label in ("full_attention", "sliding_attention"):
            assert layer_counts.count_layers(found, label) == types.count(label)


# --- to paste ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, *CONFIGS])
def test_what_is_pasted_is_what_the_configuration_says(report, name: str) -> None:
    given = CONFIGS[name] if name in CONFIGS else config(name)
    pasted: dict[str, Any] = {"rope_xp": rope_xp}
    for layers in report(given)["layers"]:
        exec(layers["python"], pasted)
    del pasted["rope_xp"], pasted["__builtins__"]
    expected = from_hf_config(given)
    assert pasted == (expected if isinstance(expected, dict) else {"rope": expected})


def test_positions_that_take_turns_are_short() -> None:
    rope = from_hf_config({"model_type": "qwen3_vl_text", "head_dim": 128})
    text = python_text.format_assignment("rope", rope)
    assert "position_axes=(0, 1, 2) * 20 + (0,) * 4," in text
    pasted: dict[str, Any] = {"rope_xp": rope_xp}
    exec(text, pasted)
    assert pasted["rope"] == rope


def test_a_rule_of_somebody_else_is_not_pasted() -> None:
    class Mine(rope_xp.scaling.Linear):
        pass

    assert python_text.format_assignment("rope", rope_xp.RoPE(scaling=Mine(2.0))) is None


# --- the terminal --------------------------------------------------------------------------------


def test_reports_fit_a_terminal_of_80_columns() -> None:
    files = [str(HERE / "configs" / f"{name}.json") for name in MODELS]
    code = f"from rope_xp.__main__ import main\nfor file in {files}: main(['inspect', file])"
    lines = shown("-c", code).splitlines()
    assert sum(line.startswith("suspicious: nothing") for line in lines) == 12
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_the_name_of_a_model_on_the_hub(command: str, capsys) -> None:
    assert cli.main([command, "meta-llama/Llama-3.1-8B"]) == 1
    told = capsys.readouterr().err
    assert "rope_xp downloads nothing" in told
    assert "hf download meta-llama/Llama-3.1-8B config.json --local-dir Llama-3.1-8B" in told


def test_the_report_in_the_docs_is_one_of_these() -> None:
    page = Path(__file__).parents[2] / "docs" / "models.md"
    text = (HERE / "reports" / "llama_3_1_8b.txt").read_text("utf-8")
    assert f"```text\n{text}```\n" in page.read_text("utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_pasted_frequencies_are_those_of_transformers(report, name: str) -> None:
    """The rotary module that the model's own code makes of the same file."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    given = config(name)
    made = auto.CONFIG_MAPPING[given["model_type"]].from_dict(given).get_text_config()
    directory = made.model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{directory}.modeling_{directory}")
    (kind,) = (
        getattr(module, each)
        for each in vars(module)
        if each.endswith("RotaryEmbedding") and "Vision" not in each
    )
    rotary = kind(made)
    buffers = dict(rotary.named_buffers())
    pasted: dict[str, Any] = {"rope_xp": rope_xp}
    found = report(given)["layers"]
    for layers in found:
        exec(layers["python"], pasted)
        label = layers["layer_type"]
        rope = pasted[label or "rope"].for_length(1)
        theirs = buffers[f"{label}_inv_freq" if label else "inv_freq"].double().numpy()
        ours = rope_xp.RoPE(base=rope.base, scaling=rope.scaling).frequencies(2 * len(theirs))
        # float32 powers and quotients: a few units of 6e-8.
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert layers["rotary_dim"] == 2 * len(theirs)
        scale = getattr(rotary, f"{label}_attention_scaling" if label else "attention_scaling")
        assert layers["attention_factor"] == pytest.approx(scale, rel=1e-12)
        follows = made.hidden_size // made.num_attention_heads
        rest = getattr(made, "qk_nope_head_dim", 0)  # of which their head_dim knows nothing
        assert layers["head_dim"] == rest + getattr(made, "head_dim", follows)
    assert len(found) == sum(key.endswith("inv_freq") and "original" not in key for key in buffers)
