"""Models with M-RoPE, and their configurations."""

from collections.abc import Mapping
from typing import Any

from rope_xp._core.errors import RopeConfigError
from rope_xp.hf._files import read_mapping

WHOLE_VIDEOS = ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "ernie4_5_vl_moe")
"""Models whose videos are one run of tokens."""
SEPARATE_FRAMES = (
    *("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    *("glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
    *("cohere_compass", "cosmos3_edge", "cosmos3_omni"),
)
"""Models with text between the frames of a video, each of which is counted as an image."""
OMNI = ("qwen2_5_omni", "qwen3_omni_moe")
"""Models that count frames by time and audio as text, and go on after the largest position."""
OTHERS = ("glm_image", "hunyuan_vl", "minicpmv4_7")
MODELS = (*WHOLE_VIDEOS, *SEPARATE_FRAMES, *OMNI, *OTHERS)


def find_model(config: object) -> tuple[str, Mapping[str, Any]]:
    """Return the model type of a configuration, and the part of it that has vision_config."""
    keys = read_mapping(config)
    if keys.get("thinker_config") is not None:
        keys = read_mapping(keys["thinker_config"])
    name = keys.get("model_type")
    name = name.removesuffix("_thinker") if isinstance(name, str) else name
    if name not in MODELS:
        raise RopeConfigError(
            f"model_type {name!r} is none whose positions are counted here. Those are "
            f"{', '.join(sorted(MODELS))}; positions.mrope takes spans of any"
        )
    return name, keys


def need_key(keys: Mapping[str, Any], name: str) -> Any:
    """Return a value of the configuration that must be there."""
    if keys.get(name) is None:
        raise RopeConfigError(f"{name} is missing from the configuration")
    return keys[name]


def need_vision(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return vision_config, which the whole configuration of a model has."""
    if keys.get("vision_config") is None:
        raise RopeConfigError("vision_config is missing; give the whole configuration of the model")
    return read_mapping(keys["vision_config"])
