"""Positions of HunYuan-VL and MiniCPM-V 4.7, whose images are canvases next to the text."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf._files import read_part
from rope_xp.positions._rope_index import indexer
from rope_xp.positions._rope_index.indexer import IMAGE, TEXT, VIDEO, GridQueue, Indexer

_MARKS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")


class HunYuanIndexer(Indexer):
    """Counts all tokens, and also the cells of an image, (width, height, image)."""

    def __init__(self, keys: Mapping[str, Any], inputs: Mapping[str, Any], is_packed: bool) -> None:
        super().__init__(keys, is_packed)
        text = read_part(keys.get("text_config") or keys)
        parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
        sections = parameters.get("mrope_section", parameters.get("xdrope_section")) or ()
        if len(sections) < 3:
            raise RopeConfigError(
                "mrope_section of rope_parameters must have at least three numbers, for width, "
                f"height and the image; got {sections!r}"
            )
        self.components = len(sections)
        vision = read_part(indexer.need_key(keys, "vision_config"))
        merge = indexer.need_key(vision, "spatial_merge_size")
        grids = enumerate(indexer.read_grids(inputs, "image_grid_thw", merge))
        self.queues = (GridQueue("image_grid_thw", grids),)

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        positions = np.tile(np.arange(types.size), (self.components, 1))
        first: int | None = None
        for token_type, start, stop in indexer.split_runs(types):
            if token_type != IMAGE:
                continue
            image, (_frames, height, width) = self.queues[0].take()
            if first is None:  # images are numbered through a batch
                first = image if self.is_packed else 0
            cells = np.indices((height, width + 1)).reshape(2, -1)  # a newline token ends each row
            marks = stop - start - cells.shape[1]  # some processors put a token on either side
            if marks not in (0, 2):
                hint = "; a newline token ends each row"
                raise self.queues[0].mismatch((height, width), cells.shape[1], stop - start, hint)
            inside = slice(start + marks // 2, stop - marks // 2)
            positions[-3, inside], positions[-2, inside] = cells[1], cells[0]
            positions[-1, inside] = image - first
        return positions


class _Frame(NamedTuple):
    """Start and stop of the tokens of an image, or of a frame of a video, and of its slices."""

    token_type: int
    thumbnail: tuple[int, int]
    slices: list[tuple[int, int]]


class MiniCPMIndexer(Indexer):
    """Counts text, and lays a thumbnail and its slices out on a shared canvas."""

    def __init__(self, keys: Mapping[str, Any], inputs: Mapping[str, Any], is_packed: bool) -> None:
        super().__init__(keys, is_packed)
        self._keys = keys
        mode = inputs.get("downsample_mode") or keys.get("downsample_mode") or "16x"
        merge = 2 if mode == "4x" else 4
        self._grids = {
            token_type: GridQueue(name, indexer.read_grids(inputs, name, merge, axes=2))
            for token_type, name in ((IMAGE, "target_sizes"), (VIDEO, "target_sizes_videos"))
        }
        self.queues = (*self._grids.values(),)

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        positions = np.empty((3, ids.size), np.int64)
        token = position = 0  # those that come next
        for frame in self._split_frames(ids, types):
            mark = frame.thumbnail[0] - 1
            if mark > token:
                positions[:, token:mark] = position + np.arange(mark - token)
                position += mark - token
            token = (frame.slices or [frame.thumbnail])[-1][1]
            while token < ids.size and ids[token] in self._marks:
                token += 1
            position = self._index_frame(positions[:, :token], frame, position)
        positions[:, token:] = position + np.arange(ids.size - token)
        return positions

    def _split_frames(self, ids: np.ndarray, types: np.ndarray) -> list[_Frame]:
        frames: list[_Frame] = []
        for token_type, start, stop in indexer.split_runs(types):
            if token_type == TEXT:
                continue
            if token_type not in self._grids:
                raise RopeError(f"mm_token_type_ids must be 0, 1 or 2; got {token_type}")
            self._marks = [indexer.need_key(self._keys, name) for name in _MARKS]
            if start == 0:
                raise RopeError("ids begin with an image; image_start_id comes before it")
            if frames and ids[start - 1] == self._marks[0]:
                frames[-1].slices.append((start, stop))
            else:
                frames.append(_Frame(token_type, (start, stop), []))
        return frames

    def _take_grid(self, token_type: int, start: int, stop: int) -> tuple[int, int]:
        grids = self._grids[token_type]
        height, width = grid = grids.take()
        if height * width != stop - start:
            hint = "; downsample_mode says how many are merged"
            raise grids.mismatch(grid, height * width, stop - start, hint)
        return height, width

    def _index_frame(self, positions: np.ndarray, frame: _Frame, origin: int) -> int:
        """Write positions up to the end of a frame, and return that of the next token."""
        token_type, (start, stop), slices = frame
        thumbnail = canvas = self._take_grid(token_type, start, stop)
        grids = [self._take_grid(token_type, *tokens) for tokens in slices]
        # Between slices of a row are two marks, and between rows newlines too.
        gaps = [(a[1] + 1, b[0] - 1) for a, b in pairwise(slices)]
        columns = next((i for i, (a, b) in enumerate(gaps, 1) if a < b), len(slices))
        if slices:
            columns = columns if len(slices) % columns == 0 else len(slices)
            canvas = len(slices) // columns * grids[0][0], columns * grids[0][1]
        positions[:, start - 1 :] = origin
        positions[1:, start - 1] = max(origin - 1, 0)  # the halo of the mark before the canvas
        positions[1:, stop : stop + 1] = origin + np.array(canvas)[:, None]
        positions[1:, start:stop] += _stretch_grid(thumbnail, canvas)
        for i, ((start, stop), grid) in enumerate(zip(slices, grids, strict=True)):
            row, column = divmod(i, columns)
            corner = origin + np.array([[row * grids[0][0]], [column * grids[0][1]]])
            positions[1:, start - 1 : start] = corner
            positions[1:, start:stop] = corner + _stretch_grid(grid, grid)
            positions[1:, stop : stop + 1] = corner + np.array(grid)[:, None] - 1
        for i, (start, stop) in enumerate(gaps):
            row = i // columns + 1
            positions[1, start:stop] = origin + row * grids[0][0] - 1
            positions[2, start:stop] = origin + columns * grids[0][1]
        return origin + max(canvas) + 1


def _stretch_grid(grid: tuple[int, int], canvas: tuple[int, int]) -> np.ndarray:
    """Return row and column of the cells of a grid on a canvas, (2, cells)."""
    lines = [_round_linspace(n, length) for n, length in zip(grid, canvas, strict=True)]
    return np.stack(np.meshgrid(*lines, indexing="ij")).reshape(2, -1)


def _round_linspace(n: int, length: int) -> np.ndarray:
    """Return n integers from 0 to length - 1, those of torch.linspace in float32, rounded."""
    # It counts from either end to the middle, which decides the rounding of halves.
    i, last = np.arange(n, dtype=np.float32), np.float32(length - 1)
    step = last / np.float32(max(n - 1, 1))
    exact = np.where(i < n // 2, step * i, last - step * (np.float32(n - 1) - i))
    return np.round(exact if n > 1 else i).astype(np.int64)
