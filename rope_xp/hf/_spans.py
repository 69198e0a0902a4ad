"""Which tokens of a sequence are text, images and videos, as models with M-RoPE count them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rope_xp._contract.errors import RopeConfigError, RopeError
from rope_xp.hf._keys import read

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
"""What mm_token_type_ids say, those of transformers' processors."""

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
OTHERS = {
    "glm_image": "it counts images that are still to be made",
    "hunyuan_vl": "images do not move what follows them, and have a number each",
    "minicpmv4_7": "pictures are cut into slices that share a canvas",
}
"""Models whose positions are counted otherwise."""


class Span(NamedTuple):
    """Tokens in a row."""

    tokens: int | tuple[int, int, int]
    """How many of text, or frames, height and width after merging."""
    interval: tuple[float, ...] = ()
    """Factors that make positions of frames, multiplied in float32 one after the other."""


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


def rule(config: object) -> Rule:
    """Return how the model of a configuration counts."""
    keys = read(config)
    keys = keys if keys.get("thinker_config") is None else read(keys["thinker_config"])
    name = keys.get("model_type")
    name = name.removesuffix("_thinker") if isinstance(name, str) else name
    if name not in (*WHOLE, *BY_FRAME, *BY_TIME):
        why = OTHERS.get(name, "it is not known")  # type: ignore[arg-type]  # None is in no table
        known = ", ".join(sorted((*WHOLE, *BY_FRAME, *BY_TIME)))
        msg = (
            f"model_type {name!r} is none whose positions are counted here: {why}. Those are "
            f"{known}; positions.mrope takes spans of any"
        )
        raise RopeConfigError(msg)
    vision = keys.get("vision_config")
    if vision is None:
        msg = f"vision_config is missing; give the whole configuration of {name}"
        raise RopeConfigError(msg)
    vision = read(vision)
    marks = None
    if name.startswith("glm"):  # has one token for parts of both
        marks = _needed(keys, "video_start_token_id"), _needed(keys, "video_end_token_id")
    return Rule(
        by_frame=name in BY_FRAME,
        merge=_needed(vision, "spatial_merge_size"),
        frames_merged=_needed(vision, "temporal_merge_size") if name[:5] == "ernie" else 1,
        per_second=_per_second(name, keys, vision),
        image=keys.get("image_token_id", keys.get("image_token_index")),
        video=keys.get("video_token_id", keys.get("video_token_index")),
        audio=keys.get("audio_token_id", keys.get("audio_token_index")),
        marks=marks,
        by_time=name in BY_TIME,
        floors=name != "qwen3_omni_moe",
        padding=int(name == "qwen2_5_omni"),
    )


def _per_second(name: str, keys: Mapping[str, Any], vision: Mapping[str, Any]) -> float | None:
    if name in BY_TIME:
        return float(_needed(keys, "position_id_per_seconds"))
    return float(_needed(vision, "tokens_per_second")) if name == "qwen2_5_vl" else None


def _needed(keys: Mapping[str, Any], name: str) -> Any:
    if keys.get(name) is None:
        raise RopeConfigError(f"{name} is missing from the configuration")
    return keys[name]


def types(ids: np.ndarray, counted: Rule) -> np.ndarray:
    """Return what each token of a batch is, by its number."""
    found = np.zeros(ids.shape, np.int64)
    found[ids == counted.image] = IMAGE
    found[ids == counted.video] = VIDEO
    if counted.by_time:
        found[ids == counted.audio] = AUDIO
    if counted.marks is not None:
        begun, ended = (np.cumsum(ids == mark, axis=-1) for mark in counted.marks)
        found[(ids == counted.image) & (begun > ended)] = VIDEO
    return found


class Grids:
    """The grids of a batch, handed out in the order in which their tokens come."""

    def __init__(self, given: Mapping[str, Any], counted: Rule) -> None:
        self.counted = counted
        self.left = {
            IMAGE: iter([Span(grid) for grid in self._sizes(given, "image_grid_thw", 1)]),
            VIDEO: iter(self._videos(given)),
        }

    def _sizes(
        self, given: Mapping[str, Any], name: str, frames_merged: int
    ) -> list[tuple[int, int, int]]:
        grids = given.get(name)
        if grids is None:
            return []
        grids, merge = np.asarray(grids), self.counted.merge
        if grids.ndim != 2 or grids.shape[1] != 3 or grids.dtype.kind not in "iu":
            msg = (
                f"{name} must be integers (frames, height, width) for each; got {grids.dtype} of "
                f"shape {grids.shape}"
            )
            raise RopeError(msg)
        if (grids < 1).any() or (grids[:, 1:] % merge).any() or (grids[:, 0] % frames_merged).any():
            msg = (
                f"{name} must be positive, in patches of which {merge} by {merge} are merged and "
                f"{frames_merged} frames; got {grids.tolist()}"
            )
            raise RopeError(msg)
        return [(t // frames_merged, h // merge, w // merge) for t, h, w in grids.tolist()]

    def _videos(self, given: Mapping[str, Any]) -> Iterator[Span]:
        counted = self.counted
        sizes = self._sizes(given, "video_grid_thw", counted.frames_merged)
        seconds = given.get("second_per_grid_ts", given.get("video_second_per_grid"))
        seconds = [1.0] * len(sizes) if seconds is None else np.asarray(seconds).tolist()
        if len(seconds) != len(sizes):
            msg = f"second_per_grid_ts has {len(seconds)} numbers for {len(sizes)} videos"
            raise RopeError(msg)
        for size, each in zip(sizes, seconds, strict=True):
            if counted.by_frame:
                yield from [Span((1, *size[1:]))] * size[0]
            elif counted.per_second is None:
                yield Span(size)
            elif counted.by_time:
                yield Span(size, (each, counted.per_second))
            else:
                yield Span(size, (each * counted.per_second,))

    def take(self, kind: int, tokens: int) -> Iterator[Span]:
        """Yield the grids of as many tokens of a kind."""
        name = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}[kind]
        left = tokens
        while left > 0:
            span = next(self.left[kind], None)
            if span is None:
                raise RopeError(f"{name} has fewer grids than ids have tokens for")
            size = int(np.prod(span.tokens))
            if size > left:
                msg = (
                    f"{name} has a grid of {span.tokens} after merging, {size} tokens, where ids "
                    f"have {left}"
                )
                raise RopeError(msg)
            left -= size
            yield span

    def check_all_taken(self) -> None:
        """Check that each grid had its tokens."""
        for kind, name in ((IMAGE, "image_grid_thw"), (VIDEO, "video_grid_thw")):
            if next(self.left[kind], None) is not None:
                raise RopeError(f"{name} has more grids than ids have tokens for")


def spans(kinds: np.ndarray, grids: Grids) -> Iterator[Span]:
    """Yield the spans of a sequence, given what each token is."""
    ends = np.flatnonzero(np.diff(kinds)) + 1
    if (kinds[:-1] * kinds[1:] == VIDEO * AUDIO).any():  # as no other two make it
        raise RopeError(
            "tokens of sound and of a video lie side by side: a video with its sound is not "
            "counted here; positions.mrope and its neighbours build positions of any"
        )
    for part in np.split(kinds, ends):
        if part.size == 0:
            continue
        kind, tokens = int(part[0]), part.size
        if kind in (TEXT, AUDIO if grids.counted.by_time else TEXT):
            yield Span(tokens)
        elif kind in (IMAGE, VIDEO):
            yield from grids.take(kind, tokens)
        else:
            msg = f"mm_token_type_ids must be 0 (text), 1 (image) or 2 (video); got {kind}"
            raise RopeError(msg)
