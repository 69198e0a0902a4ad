"""Configurations for the tests of python -m rope_xp inspect, and how they run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import rope_xp
from rope_xp import __main__ as cli

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
UNCLEAR = {"model_type": "dbrx", "rope_theta": 1e4}  # of a type whose sizes are not known
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


def reporter(tmp_path: Path, capsys: Any) -> Any:
    """Return a function from a configuration to the JSON object of its report."""

    def run_inspect(config: dict[str, Any], *options: str) -> dict[str, Any]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert cli.main(["inspect", str(tmp_path), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=_refuse)

    return run_inspect


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def paste(report: dict[str, Any]) -> dict[str, Any]:
    """Return what the lines in Python of a report assign."""
    names: dict[str, Any] = {"rope_xp": rope_xp}
    for layers in report["layers"]:
        exec(layers["python"], names)
    return {name: names[name] for name in names if name not in ("rope_xp", "__builtins__")}


def with_rule(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, "rope_scaling": {**config["rope_scaling"], **changes}}


def waves(base: float, r: int) -> np.ndarray:
    return 2 * np.pi * base ** (2 * np.arange(r // 2) / r)
