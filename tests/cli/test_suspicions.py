"""python -m rope_xp inspect: suspicions, and errors."""

import json

import pytest
from support import inspected
from support.inspected import BEAM, CONFIGS, GEMMA4, LLAMA, with_rule

from rope_xp import __main__ as cli

report = pytest.fixture(inspected.build_reporter)


TRAINED, EXTENDED = "original_max_position_embeddings", "max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, TRAINED: 8192}
PLAIN = {"model_type": "qwen2", "head_dim": 64, EXTENDED: 32768}
ODD = {
    **PLAIN,
    "model_type": "phi3",
    "head_dim": 25,
    "partial_rotary_factor": 0.3,
    "rope_theta": 1e4,
}


def with_parameters(config, **parameters):
    return {**config, "rope_parameters": {**config.get("rope_parameters", {}), **parameters}}


SUSPICIOUS = [
    (with_rule(LLAMA, finetuned=True), "nothing reads rope_scaling.finetuned = True"),
    ({**LLAMA, "use_dynamic_ntk": True}, "nothing reads use_dynamic_ntk = True"),
    (with_parameters(GEMMA4, factor=2.0), "nothing reads rope_parameters.factor = 2.0"),
    (with_parameters(GEMMA4, sliding_attention={"rope_theta": 1e4, "alpha": 1}),
     "nothing reads rope_parameters.sliding_attention.alpha = 1"),
    (with_parameters({**PLAIN, "rope_scaling": YARN}, rope_type="default"),
     "rope_scaling and rope_parameters are both set; only rope_scaling is read"),
    ({**PLAIN, "rope_scaling": {**YARN, "factor": 2.0}},
     f"factor = 2.0, but {EXTENDED} / {TRAINED} = 32768 / 8192 = 4"),
    ({**PLAIN, "rope_scaling": {"rope_type": "linear", "factor": 0.5}},
     "factor = 0.5 is below 1, but scaling is meant to extend the context"),
    (with_rule(LLAMA, original_max_position_embeddings=131072),
     f"{TRAINED} = 131072 is not below {EXTENDED} = 131072: nothing is extended"),
    (with_rule(LLAMA, original_max_position_embeddings=None),
     f"{TRAINED} is missing; {EXTENDED} = 131072 is used instead"),
    (with_parameters({**PLAIN, "rope_theta": 1e4}, rope_theta=1e6),
     "rope_parameters.rope_theta = 1000000.0 is read and not rope_theta = 10000.0"),
    ({**PLAIN, "rope_theta": 1e4, "rope_scaling": {**YARN, "rope_theta": 1e6}},
     "rope_scaling.rope_theta = 1000000.0 is read and not rope_theta = 10000.0"),
    ({**PLAIN, "rope_scaling": {**YARN, "type": "linear"}},
     "rope_type = 'yarn' is read and not type = 'linear'"),
    (ODD, "partial_rotary_factor = 0.3 gives 7.5 components of a head, rounded down to 7"),
    (ODD, "7 components, an odd number, are rotated as 8 with the same frequencies: base 37275.9"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), SUSPICIOUS)
def test_suspicious_keys_are_named(report, config, expected):
    assert any(sentence.startswith(expected) for sentence in report(config)["suspicious"])


def test_unknown_model_type_is_suspicious_and_takes_the_usual_defaults(report):
    config = {**PLAIN, "model_type": "novel", "rope_theta": 1e4, "rope_interleaved": True}
    result = report(config, "--layout", "interleaved")
    assert not result["checked"]
    assert result["layers"][0]["rope"]["layout"] == "interleaved"
    fact = "model_type 'novel' is unknown to rope_xp"
    assert f"{fact}: the usual defaults are assumed" in result["suspicious"]
    assert "nothing reads rope_interleaved = True" in result["suspicious"]


def test_contradiction_of_two_keys_is_reported_once(report):
    contradiction, factor = report({**PLAIN, TRAINED: 16384, "rope_scaling": YARN})["suspicious"]
    names = f"{TRAINED} = 16384 is read and not rope_scaling.{TRAINED} = 8192"
    assert contradiction == names
    assert factor.endswith("32768 / 16384 = 2")


@pytest.mark.parametrize(
    "config",
    [
        {**PLAIN, "rope_scaling": YARN},
        {**BEAM, "rope_parameters": {"full_attention": None, "sliding_attention": {}}},
        {**PLAIN, "rope_scaling": {**YARN, "beta_fast": None, "unheard_of": None}},
        # What the configuration and its rule both say, and alike, is said once.
        {**PLAIN, "original_max_position_embeddings": 8192, "rope_scaling": YARN},
        {**PLAIN, "rope_parameters": {**YARN, "max_position_embeddings": 32768}},
        # 14.000000000000002 components
        {**PLAIN, "model_type": "phi3", "head_dim": 100, "partial_rotary_factor": 0.14},
        {**CONFIGS["qwen2_vl_7b"], "model_type": "qwen2_vl_text"},
        # The parameters are those of the layers that rotate, though they do not say so.
        {**PLAIN, "model_type": "cohere2", "rope_parameters": {"rope_theta": 5e4}},
        {"model_type": "pixtral", "head_dim": 64, "rope_theta": 1e4},  # of a grid
        GEMMA4,
    ],
)
def test_configurations_that_are_right_are_not_suspicious(report, config):
    assert report(config)["suspicious"] == []


def test_key_that_is_no_rotation_is_a_note(report):
    rule = {**YARN, "llama_4_scaling_beta": 0.1}
    result = report({**PLAIN, "model_type": "ministral3", "rope_parameters": rule})
    assert result["suspicious"] == []
    (note,) = result["notes"]
    assert note.startswith("llama_4_scaling_beta = 0.1 scales q by its position")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(with_rule(LLAMA, rope_type="warp")), "rope_type 'warp' is not known"),
        (json.dumps({"model_type": "bert", "hidden_size": 8}), "has no rotary embedding"),
        (json.dumps({**LLAMA, "model_type": "novel"}), "inspect --layout"),
        (b"\x89PNG", "is no JSON"),
        (None, "config.json: No such file or directory"),
    ],
)
def test_errors_of_inspect_are_one_line(tmp_path, capsys, content, expected):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["inspect", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("inspect: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err
