"""Positions of MiniCPM-V 4.7: a picture and the slices that it is cut into share one canvas."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.hf._counting import needed
from rope_xp.hf._spans import IMAGE, TEXT, VIDEO, runs

_NAMES = {IMAGE: "target_sizes", VIDEO: "target_sizes_videos"}
_MARKS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")


class _Picture(NamedTuple):
    """A picture, or a frame of a video: where its tokens are, and those of its slices."""

    kind: int
    whole: tuple[int, int]
    slices: list[tuple[int, int]]


class Counter:
    """Counts rows of a batch, one after the other."""

    components = 3

    def __init__(self, keys: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        self.keys = keys
        self.image, self.video = keys.get("image_token_id"), keys.get("video_token_id")
        mode = inputs.get("downsample_mode") or keys.get("downsample_mode") or "16x"
        self.merge = 2 if mode == "4x" else 4
        self.sizes_left = {kind: iter(self._sizes(inputs, name)) for kind, name in _NAMES.items()}

    def _sizes(self, inputs: Mapping[str, Any], name: str) -> list[tuple[int, int]]:
        grids = np.asarray(
            inputs.get(name) if inputs.get(name) is not None else np.empty((0, 2), int)
        )
        if grids.ndim != 2 or grids.shape[1] != 2 or grids.dtype.kind not in "iu":
            msg = f"{name} must be integers (height, width) for each; got shape {grids.shape}"
            raise RopeError(msg)
        if (grids < 1).any() or (grids % self.merge).any():
            msg = (
                f"{name} must be positive, in patches of which {self.merge} by {self.merge} are "
                f"merged; got {grids.tolist()}"
            )
            raise RopeError(msg)
        return [(h // self.merge, w // self.merge) for h, w in grids.tolist()]

    def _take(self, kind: int, where: tuple[int, int]) -> tuple[int, int]:
        size = next(self.sizes_left[kind], None)
        if size is None:
            raise RopeError(f"{_NAMES[kind]} has fewer grids than ids have pictures and slices")
        if size[0] * size[1] != where[1] - where[0]:
            msg = (
                f"{_NAMES[kind]} has a grid of {size} after merging, where ids have "
                f"{where[1] - where[0]} tokens; downsample_mode says how many are merged"
            )
            raise RopeError(msg)
        return size

    def row(self, ids: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Return (3, tokens) of a sequence."""
        positions = np.empty((3, ids.size), np.int64)
        token = start = 0  # the token that comes next, and its position
        for picture in self._pictures(ids, kinds):
            mark = picture.whole[0] - 1
            if mark > token:
                positions[:, token:mark] = start + np.arange(mark - token)
                start += mark - token
            token = (picture.slices or [picture.whole])[-1][1]
            while token < ids.size and ids[token] in self.marks:
                token += 1
            start = self._draw(positions[:, :token], picture, start)
        positions[:, token:] = start + np.arange(ids.size - token)
        return positions

    def _pictures(self, ids: np.ndarray, kinds: np.ndarray) -> list[_Picture]:
        pictures: list[_Picture] = []
        self.marks: tuple[int, ...] = ()
        for kind, first, end in runs(kinds):
            if kind == TEXT:
                continue
            if kind not in _NAMES:
                raise RopeError(f"mm_token_type_ids must be 0, 1 or 2; got {kind}")
            self.marks = tuple(needed(self.keys, name) for name in _MARKS)
            if first == 0:
                raise RopeError("ids begin with a picture; image_start_id comes before it")
            if pictures and ids[first - 1] == self.marks[0]:
                pictures[-1].slices.append((first, end))
            else:
                pictures.append(_Picture(kind, (first, end), []))
        return pictures

    def _draw(self, positions: np.ndarray, picture: _Picture, origin: int) -> int:
        """Write positions up to the end of a picture, and return that of the next token."""
        kind, (first, end), slices = picture
        whole = canvas = self._take(kind, picture.whole)
        grids = [self._take(kind, each) for each in slices]
        # Between slices of a row are two marks; what ends a row is between them.
        between = [(a[1] + 1, b[0] - 1) for a, b in pairwise(slices)]
        columns = next((i for i, (a, b) in enumerate(between, 1) if a < b), len(slices))
        if slices:
            columns = columns if len(slices) % columns == 0 else len(slices)
            canvas = len(slices) // columns * grids[0][0], columns * grids[0][1]
        positions[:, first - 1 :] = origin
        positions[1:, first - 1] = max(origin - 1, 0)  # the mark before it: just outside
        positions[1:, end : end + 1] = origin + np.array(canvas)[:, None]
        positions[1:, first:end] += _cells(whole, canvas)
        for i, ((first, end), size) in enumerate(zip(slices, grids, strict=True)):
            row, column = divmod(i, columns)
            corner = origin + np.array([[row * grids[0][0]], [column * grids[0][1]]])
            positions[1:, first - 1 : first] = corner
            positions[1:, first:end] = corner + _cells(size, size)
            positions[1:, end : end + 1] = corner + np.array(size)[:, None] - 1
        for i, (first, end) in enumerate(between):
            row = i // columns + 1
            positions[1, first:end] = origin + row * grids[0][0] - 1
            positions[2, first:end] = origin + columns * grids[0][1]
        return origin + max(canvas) + 1

    def check_all_taken(self) -> None:
        """Check that each grid had its tokens."""
        for kind, name in _NAMES.items():
            if next(self.sizes_left[kind], None) is not None:
                raise RopeError(f"{name} has more grids than ids have pictures and slices")


def _cells(size: tuple[int, int], canvas: tuple[int, int]) -> np.ndarray:
    """Return row and column of cells that are spread over a canvas, (2, cells)."""
    lines = [_spread(n, over) for n, over in zip(size, canvas, strict=True)]
    return np.stack(np.meshgrid(*lines, indexing="ij")).reshape(2, -1)


def _spread(n: int, over: int) -> np.ndarray:
    """Return n whole numbers from 0 to over - 1, rounded as torch.linspace computes in float32.

    It counts from either end to the middle, and that decides about what lies half way.
    """
    i, last = np.arange(n, dtype=np.float32), np.float32(over - 1)
    step = last / np.float32(max(n - 1, 1))
    exact = np.where(i < n // 2, step * i, last - step * (np.float32(n - 1) - i))
    return np.round(exact if n > 1 else i).astype(np.int64)
