"""Types of tokens, grids of images and videos, and the base class of indexers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
"""Values of ``mm_token_type_ids``."""


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
        """Return the next grid."""
        grid = next(self._left, None)
        if grid is None:
            raise RopeError(f"{self._name} has fewer grids than ids have tokens for")
        return grid

    def mismatch(self, grid: tuple[int, ...], size: int, tokens: int, hint: str = "") -> RopeError:
        """Return the error of a grid whose size is not the number of its tokens."""
        return RopeError(
            f"{self._name} has a grid of {grid} after merging, {size} tokens, where ids have "
            f"{tokens}{hint}"
        )

    def check_all_taken(self) -> None:
        """Check that each grid had its tokens."""
        if next(self._left, None) is not None:
            raise RopeError(f"{self._name} has more grids than ids have tokens for")


class Indexer:
    """Counts the rows of a batch in order."""

    components: int = 3
    padding: int = 0
    """The position of padding."""
    dtype: type = np.int64
    queues: Sequence[GridQueue] = ()
    """The grids of which each must have its tokens."""
    image_token_id: int | None = None
    video_token_id: int | None = None

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        """Return the type of each token."""
        types = np.zeros(ids.shape, np.int64)
        types[ids == self.image_token_id] = IMAGE
        types[ids == self.video_token_id] = VIDEO
        return types

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Return the positions (components, tokens) of a sequence."""
        raise NotImplementedError


def split_runs(types: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the type, start and stop of each run of tokens of one type."""
    stops = [*(np.flatnonzero(np.diff(types)) + 1).tolist(), types.size]
    for start, stop in zip([0, *stops], stops, strict=False):
        if start < stop:
            yield int(types[start]), start, stop
