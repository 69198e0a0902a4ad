"""Models with M-RoPE; types of tokens, grids of images and videos, and the base of indexers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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


def find_model(config: object) -> tuple[str, Mapping[str, Any]]:
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


def need_key(keys: Mapping[str, Any], name: str) -> Any:
    """Return a value of the configuration that must be there."""
    if keys.get(name) is None:
        raise RopeConfigError(f"{name} is missing; pass the whole configuration of the model")
    return keys[name]


def read_grids(
    inputs: Mapping[str, Any], name: str, merge: int, temporal_merge: int = 1, axes: int = 3
) -> list[tuple[int, ...]]:
    """Return (frames, height, width), or with two axes (height, width), after merging."""
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
    return [tuple(grid) for grid in (grids // merged).tolist()]


class GridQueue:
    """The grids of one input, taken in the order of their tokens."""

    def __init__(self, name: str, grids: Iterable[Any]) -> None:
        self._name, self._left = name, iter(grids)

    def take(self) -> Any:
        grid = next(self._left, None)
        if grid is None:
            raise RopeError(f"{self._name} has too few grids for the tokens in ids")
        return grid

    def mismatch(self, grid: tuple[int, ...], size: int, tokens: int, hint: str = "") -> RopeError:
        """Return the error of a grid whose size is not the number of its tokens."""
        return RopeError(
            f"{self._name} has a grid of {grid} after merging, {size} tokens, but ids have "
            f"{tokens}{hint}"
        )

    def check_all_taken(self) -> None:
        if next(self._left, None) is not None:
            raise RopeError(f"{self._name} has more grids than there are tokens for in ids")


class Indexer(ABC):
    """Counts the rows of a batch in order."""

    components: int = 3
    padding: int = 0  # the position of padding
    dtype: type = np.int64
    queues: Sequence[GridQueue] = ()  # the grids of which each must have its tokens

    def __init__(self, keys: Mapping[str, Any], is_packed: bool) -> None:
        self.is_packed = is_packed  # rows are sequences that count as if alone
        self.token_ids = {
            token_type: keys.get(f"{name}_token_id", keys.get(f"{name}_token_index"))
            for token_type, name in ((IMAGE, "image"), (VIDEO, "video"))
        }

    @abstractmethod
    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Return the positions (components, tokens) of a sequence."""

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        types = np.zeros(ids.shape, np.int64)
        for token_type, token_id in self.token_ids.items():
            types[ids == token_id] = token_type
        return types


def split_runs(types: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the type, start and stop of each run of tokens of one type."""
    stops = [*(np.flatnonzero(np.diff(types)) + 1).tolist(), types.size]
    for start, stop in zip([0, *stops], stops, strict=False):
        if start < stop:
            yield int(types[start]), start, stop
