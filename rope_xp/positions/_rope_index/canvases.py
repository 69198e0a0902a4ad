"""Positions of HunYuan-VL and MiniCPM-V 4.7, whose images are canvases next to the text."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf._files import read_part
from rope_xp.positions._rope_index import models
from rope_xp.positions._rope_index.models import GridQueue, Keys, Rows, Span, need_key

_MARKS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")
_Tokens = tuple[int, int]  # their start and stop


def index_hunyuan(
    _name: str, keys: Keys, inputs: Keys, rows: Rows, is_packed: bool
) -> Iterator[np.ndarray]:
    """Yield numbers of all tokens, and of the cells of an image, (width, height, image)."""
    text = read_part(keys.get("text_config") or keys)
    parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
    sections = parameters.get("mrope_section", parameters.get("xdrope_section")) or ()
    if len(sections) < 3:
        raise RopeConfigError(
            "mrope_section of rope_parameters must have at least three numbers, for width, "
            f"height and the image; got {sections!r}"
        )
    merge = need_key(read_part(need_key(keys, "vision_config")), "spatial_merge_size")
    grids = models.read_grids(inputs, "image_grid_thw", merge, newlines=1)
    queue = GridQueue("image_grid_thw", (Span(grid[1:]) for grid in grids))
    hint = "; a newline token ends each row, and counts"
    image = 0  # images are numbered through a batch
    for _, types in rows:
        first = image if is_packed else 0
        positions = np.tile(np.arange(types.size), (len(sections), 1))
        for token_type, start, stop in models.split_runs(types):
            if token_type == models.IMAGE:
                # Some processors put a token on either side.
                span = queue.take(stop - start, (0, 2), hint)
                mark = (stop - start - span.size) // 2
                inside = slice(start + mark, stop - mark)
                rows_and_columns = np.indices(span.grid).reshape(2, -1)
                positions[-3:-1, inside] = rows_and_columns[::-1]
                positions[-1, inside] = image - first
                image += 1
        yield positions
    queue.check_all_taken()


def index_minicpm(
    _name: str, keys: Keys, inputs: Keys, rows: Rows, _is_packed: bool
) -> Iterator[np.ndarray]:
    """Yield numbers of text, and of thumbnails and their slices on a shared canvas."""
    mode = inputs.get("downsample_mode") or keys.get("downsample_mode") or "16x"
    hint = "; downsample_mode says how many are merged"
    queues = {}
    for token_type, name in ((models.IMAGE, "target_sizes"), (models.VIDEO, "target_sizes_videos")):
        grids = models.read_grids(inputs, name, 2 if mode == "4x" else 4, axes=2)
        queues[token_type] = GridQueue(name, map(Span, grids))
    for ids, types in rows:
        marks = [need_key(keys, name) for name in _MARKS] if types.any() else []
        positions = np.empty((3, ids.size), np.int64)
        token = position = 0  # those that come next
        for token_type, thumbnail, *slices in _split_frames(ids, types, marks):
            mark = thumbnail[0] - 1
            if mark > token:
                positions[:, token:mark] = position + np.arange(mark - token)
                position += mark - token
            token = (thumbnail, *slices)[-1][1]
            while token < ids.size and ids[token] in marks:
                token += 1
            crops = [
                (tokens, queues[token_type].take(tokens[1] - tokens[0], (0,), hint).grid)
                for tokens in (thumbnail, *slices)
            ]
            position = _index_frame(positions[:, :token], crops, position)
        positions[:, token:] = position + np.arange(ids.size - token)
        yield positions
    for queue in queues.values():
        queue.check_all_taken()


def _split_frames(ids: np.ndarray, types: np.ndarray, marks: Sequence[int]) -> list[list[Any]]:
    """Return the type of each image or frame of a video, its tokens, and those of its slices."""
    frames: list[list[Any]] = []
    for token_type, start, stop in models.split_runs(types):
        if token_type == models.TEXT:
            continue
        if start == 0:
            raise RopeError("ids begin with an image; image_start_id comes before it")
        if frames and ids[start - 1] == marks[0]:
            frames[-1].append((start, stop))
        else:
            frames.append([token_type, (start, stop)])
    return frames


def _index_frame(positions: np.ndarray, crops: list[tuple[_Tokens, Any]], origin: int) -> int:
    """Write positions up to the end of a frame, and return that of the next token."""
    ((start, stop), thumbnail), *slices = crops
    height, width = slices[0][1] if slices else thumbnail
    # Between slices of a row are two marks, and between rows newlines too.
    gaps = [(a[1] + 1, b[0] - 1) for (a, _), (b, _) in pairwise(slices)]
    columns = next((i for i, (a, b) in enumerate(gaps, 1) if a < b), len(slices)) or 1
    columns = columns if len(slices) % columns == 0 else len(slices)
    canvas = max(len(slices) // columns, 1) * height, columns * width
    positions[:, start - 1 :] = origin
    positions[1:, start - 1] = max(origin - 1, 0)  # the halo of the mark before the canvas
    positions[1:, stop : stop + 1] = origin + np.array(canvas)[:, None]
    positions[1:, start:stop] += _stretch_grid(thumbnail, canvas)
    for i, ((start, stop), grid) in enumerate(slices):
        corner = origin + np.array(divmod(i, columns))[:, None] * [[height], [width]]
        positions[1:, start - 1 : start] = corner
        positions[1:, start:stop] = corner + _stretch_grid(grid, grid)
        positions[1:, stop : stop + 1] = corner + np.array(grid)[:, None] - 1
    for i, (start, stop) in enumerate(gaps):
        positions[1, start:stop] = origin + (i // columns + 1) * height - 1
        positions[2, start:stop] = origin + columns * width
    return int(origin + max(canvas) + 1)


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
