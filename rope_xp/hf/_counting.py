"""How models with M-RoPE count positions, by their configurations."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rope_xp._core.errors import RopeConfigError
from rope_xp.hf._keys import read

WHOLE = ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "ernie4_5_vl_moe")
"""Models that count the frames of a video in one go."""
BY_FRAME = (
    *("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    *("glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
    *("cohere_compass", "cosmos3_edge", "cosmos3_omni"),
)
"""Models that have text between the frames of a video, each of which is counted as an image."""
BY_TIME = ("qwen2_5_omni", "qwen3_omni_moe")
"""Models that count frames by time, sound as text, and go on behind the largest number."""
TO_IMAGE = ("glm_image",)
"""Models whose images lie between marks, and that have grids of images still to be made."""
ALONE = ("hunyuan_vl", "minicpmv4_7")
"""Models of which each counts in its own way, in ``_ordinals`` and ``_canvas``."""
_SPANS = (*WHOLE, *BY_FRAME, *BY_TIME, *TO_IMAGE)


class Rule(NamedTuple):
    """How a model counts."""

    by_frame: bool
    merge: int
    frames_merged: int
    """Of a video."""
    per_second: float | None
    """Positions for a second, if its frames are counted by time."""
    image: int | None
    video: int | None
    """Which token stands for a part of either."""
    audio: int | None
    marks: tuple[int, int] | None = None
    """Between which tokens those of an image are those of a video."""
    by_time: bool = False
    """Whether what follows an image or video goes on behind its last frame, too."""
    floors: bool = True
    """Whether positions of frames are rounded down."""
    padding: int = 0
    """What stands where a sequence is padded."""
    chunk: int | None = None
    """Positions after which a video and its sound take turns, if not by their times."""
    to_image: tuple[int, int] | None = None
    """Between which tokens images are, if grids of others are there too."""


def part(config: object) -> tuple[str, Mapping[str, Any]]:
    """Return the model type of a configuration, and the part of it that says how it counts."""
    keys = read(config)
    keys = keys if keys.get("thinker_config") is None else read(keys["thinker_config"])
    name = keys.get("model_type")
    name = name.removesuffix("_thinker") if isinstance(name, str) else name
    if name not in (*_SPANS, *ALONE):
        known = ", ".join(sorted((*_SPANS, *ALONE)))
        msg = (
            f"model_type {name!r} is none whose positions are counted here. Those are {known}; "
            "positions.mrope takes spans of any"
        )
        raise RopeConfigError(msg)
    return name, keys


def rule(name: str, keys: Mapping[str, Any]) -> Rule:
    """Return how a model counts, by its configuration."""
    if name in TO_IMAGE:
        between = needed(keys, "image_start_token_id"), needed(keys, "image_end_token_id")
        return Rule(False, 1, 1, None, None, None, None, padding=1, to_image=between)
    vision = keys.get("vision_config")
    if vision is None:
        msg = f"vision_config is missing; give the whole configuration of {name}"
        raise RopeConfigError(msg)
    vision = read(vision)
    marks = None
    if name.startswith("glm"):  # has one token for parts of both
        marks = needed(keys, "video_start_token_id"), needed(keys, "video_end_token_id")
    return Rule(
        by_frame=name in BY_FRAME,
        merge=needed(vision, "spatial_merge_size"),
        frames_merged=needed(vision, "temporal_merge_size") if name[:5] == "ernie" else 1,
        per_second=_per_second(name, keys, vision),
        image=keys.get("image_token_id", keys.get("image_token_index")),
        video=keys.get("video_token_id", keys.get("video_token_index")),
        audio=keys.get("audio_token_id", keys.get("audio_token_index")),
        marks=marks,
        by_time=name in BY_TIME,
        floors=name != "qwen3_omni_moe",
        padding=int(name == "qwen2_5_omni"),
        chunk=_chunk(keys) if name == "qwen2_5_omni" else None,
    )


def _per_second(name: str, keys: Mapping[str, Any], vision: Mapping[str, Any]) -> float | None:
    if name in BY_TIME:
        return float(needed(keys, "position_id_per_seconds"))
    return float(needed(vision, "tokens_per_second")) if name == "qwen2_5_vl" else None


def _chunk(keys: Mapping[str, Any]) -> int:
    return int(needed(keys, "position_id_per_seconds") * keys.get("seconds_per_chunk", 2))


def needed(keys: Mapping[str, Any], name: str) -> Any:
    if keys.get(name) is None:
        raise RopeConfigError(f"{name} is missing from the configuration")
    return keys[name]
