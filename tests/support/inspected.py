"""Configurations for the tests of python -m rope_xp inspect, and how they run it."""

import json
from pathlib import Path

import rope_xp
from rope_xp import __main__ as cli

GOLDEN = Path(__file__).parent / "golden"
REAL = {path.stem: json.loads(path.read_text()) for path in (GOLDEN / "configs").glob("*.json")}
LLAMA = REAL["llama_3_1_8b"]
SLIDING = {"rope_type": "default", "rope_theta": 1e4}
FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
GEMMA4 = {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512}
GEMMA4 |= {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
GEMMA4 |= {"rope_parameters": {"full_attention": FULL, "sliding_attention": SLIDING}}
GEMMA4 |= {"max_position_embeddings": 131072}
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64,
    "max_position_embeddings": 2048, "rotary_pct": 0.25, "rotary_emb_base": 10000,
}  # fmt: skip
DYNAMIC = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 2048}
DYNAMIC |= {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
BEAM = {"model_type": "beam", "head_dim": 64, "max_position_embeddings": 1000}
UNCLEAR = {"model_type": "dbrx", "rope_theta": 1e4}  # of a type whose sizes are not known
SMALL = {"gemma4": GEMMA4, "neox": NEOX, "dynamic": DYNAMIC, "unclear": UNCLEAR, "beam": BEAM}
CONFIGS = {**REAL, **SMALL}


def build_reporter(tmp_path, capsys):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    def inspect(config, *options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert cli.main(["inspect", str(tmp_path), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=refuse)

    return inspect


def paste(report):
    given, ropes = {"RoPE": rope_xp.RoPE, **vars(rope_xp.scaling)}, {}
    for layers in report["layers"]:
        exec(layers["python"], given, ropes)
    return ropes


def with_rule(config, **changes):
    return {**config, "rope_scaling": {**config["rope_scaling"], **changes}}
