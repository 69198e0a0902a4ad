"""Models with M-RoPE, types of their tokens, and grids of their images and videos."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf._files import read_mapping, read_part

WHOLE_VIDEOS = ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "ernie4_5_vl_moe")
"""Models whose videos are one run of tokens."""
SEPARATE_FRAMES = (
    *("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    *("glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
    *("cohere_compass", "cosmos3_edge", "cosmos3_omni", "hy_v4_vl"),
)
"""Models that count each frame of a video as an image, most with text between them."""
NEWLINES = ("hy_v4_vl",)
"""Those with a token at the end of each row of an image."""
OMNI = ("qwen2_5_omni", "qwen3_omni_moe")
"""Models that count frames by time and audio as text, and go on after the largest position."""
MODELS = (*WHOLE_VIDEOS, *SEPARATE_FRAMES, *OMNI, "glm_image", "hunyuan_vl", "minicpmv4_7")

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
"""Values of ``mm_token_type_ids``."""

Keys = Mapping[str, Any]  # of a configuration, or of the output of a processor
Rows = Sequence[tuple[np.ndarray, np.ndarray]]
"""Ids and types of the tokens of each sequence, without padding."""


def find_model(config: object) -> tuple[str, Keys]:
    """Return the model type of a configuration, and the part of it that has vision_config."""
    keys = read_mapping(config)
    if keys.get("thinker_config") is not None:
        keys = read_part(keys["thinker_config"])
    name = keys.get("model_type")
    name = name.removesuffix("_thinker") if isinstance(name, str) else name
    if name not in MODELS:
        raise RopeConfigError(
            f"model_type {name!r} has no get_rope_index that rope_xp knows. Known are "
            f"{', '.join(sorted(MODELS))}; for others use positions.mrope, which takes spans"
        )
    return name, keys


def need_key(keys: Keys, name: str) -> Any:
    """Return a value of the configuration that must be there."""
    if keys.get(name) is None:
        raise RopeConfigError(f"{name} is missing; pass the whole configuration of the model")
    return keys[name]


def find_types(name: str, keys: Keys, ids: np.ndarray) -> np.ndarray:
    """Return the types of the tokens of a sequence."""
    types = np.zeros(ids.shape, np.int64)
    modalities = {"image": IMAGE, "video": VIDEO} | ({"audio": AUDIO} if name in OMNI else {})
    token_ids = {
        modality: keys.get(f"{modality}_token_id", keys.get(f"{modality}_token_index"))
        for modality in modalities
    }
    if name != "glm_image":  # of which marks alone determine the types
        for modality, token_type in modalities.items():
            types[ids == token_ids[modality]] = token_type
    if name.startswith("glm"):  # the image tokens between marks: of a video, in GLM-Image all
        marked = "image" if name == "glm_image" else "video"
        marks = (need_key(keys, f"{marked}_{end}_token_id") for end in ("start", "end"))
        is_start, is_end = (ids == mark for mark in marks)
        starts, ends = np.cumsum(is_start), np.cumsum(is_end)
        is_inside = starts > ends
        if name == "glm_image":
            # The last image may be open: it is still to be generated.
            types[is_inside & ~is_start & (ends < is_end.sum())] = IMAGE
        else:
            types[is_inside & (ids == token_ids["image"])] = VIDEO
    return types


def split_runs(types: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the type, start and stop of each run of tokens of one type."""
    stops = [*(np.flatnonzero(np.diff(types)) + 1).tolist(), types.size]
    for start, stop in zip([0, *stops], stops, strict=False):
        if start < stop:
            yield int(types[start]), start, stop


def read_grids(
    inputs: Keys,
    name: str,
    merge: int,
    *,
    temporal_merge: int = 1,
    axes: int = 3,
    newlines: int = 0,
) -> list[tuple[int, ...]]:
    """Return (frames, height, width), or with two axes (height, width), in tokens."""
    if inputs.get(name) is None:
        return []
    grids = np.asarray(inputs[name])
    if grids.ndim != 2 or grids.shape[1] != axes or grids.dtype.kind not in "iu":
        raise RopeError(
            f"{name} must be integers ({', '.join(('frames', 'height', 'width')[-axes:])}) for "
            f"each; got {grids.dtype} of shape {grids.shape}"
        )
    merged = (temporal_merge, merge, merge)[-axes:]
    if (grids < 1).any() or (grids % merged).any():
        raise RopeError(
            f"{name} must be positive, in patches of which {merge} by {merge} are merged and "
            f"{temporal_merge} frames; got {grids.tolist()}"
        )
    return [(*grid, width + newlines) for *grid, width in (grids // merged).tolist()]


class Span(NamedTuple):
    """Consecutive tokens of one text, image or video."""

    grid: Any  # text tokens, or integers: frames, height and width after merging
    interval: tuple[float, ...] = ()  # factors of the positions of frames, one after the other
    audio_tokens: int = 0  # tokens of audio among those of a video

    @property
    def size(self) -> int:
        return int(np.prod(self.grid))


class GridQueue:
    """The grids of one input, taken in the order of their tokens."""

    def __init__(self, name: str, spans: Iterable[Span]) -> None:
        self._name, self._left = name, iter(spans)

    def take(self, tokens: int, rest: Container[int] | None = None, hint: str = "") -> Span:
        """Return the next of so many tokens at most; ``rest`` is how many others there may be."""
        span = next(self._left, None)
        if span is None:
            raise RopeError(f"{self._name} has too few grids for the tokens in ids")
        if tokens - span.size not in (range(tokens + 1) if rest is None else rest):
            raise RopeError(
                f"{self._name} has a grid of {span.grid} after merging, {span.size} tokens, but "
                f"ids have {tokens}{hint}"
            )
        return span

    def check_all_taken(self) -> None:
        if next(self._left, None) is not None:
            raise RopeError(f"{self._name} has more grids than there are tokens for in ids")
