"""Positions of models that count span by span: text, images, videos and audio."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.hf._files import read_part
from rope_xp.positions._rope_index import models
from rope_xp.positions._rope_index.models import TEXT, VIDEO, GridQueue, Keys, Rows, Span, need_key
from rope_xp.positions._values import index_span

_AUDIO_IN_VIDEO = -1  # the type of runs with tokens of a video and of its audio
_TWO_MARKS = Span((2, 1, 1), (0.0,))
"""The marks of vision and audio, which have one position together."""


def index_spans(
    name: str, keys: Keys, inputs: Keys, rows: Rows, is_packed: bool
) -> Iterator[np.ndarray]:
    """Yield the positions (3, tokens) of each row, counted span by span."""
    vision: Keys = {"spatial_merge_size": 1}
    if name != "glm_image":
        vision = read_part(need_key(keys, "vision_config"))
    merge = need_key(vision, "spatial_merge_size")
    newlines = int(name in models.NEWLINES)
    grids = models.read_grids(inputs, "image_grid_thw", merge, newlines=newlines)
    images = [Span(grid) for grid in grids]
    videos = GridQueue("video_grid_thw", [*_read_videos(name, keys, vision, inputs)])
    queues = [GridQueue("image_grid_thw", images)] * len(rows)  # all take from those of the batch
    if name == "glm_image":  # which has more grids, for images to be generated
        counts = inputs.get("images_per_sample")
        if counts is None and images and is_packed and len(rows) > 1:
            raise RopeError("cu_seqlens needs images_per_sample, a number for each sequence")
        of_rows = _split_images(images, counts, len(rows))
        queues = [GridQueue("image_grid_thw", grids) for grids in of_rows]
    # The positions after which video and audio alternate; None sorts them by time.
    chunk: int | None = None
    if name == "qwen2_5_omni":
        per_second = need_key(keys, "position_id_per_seconds")
        chunk = int(per_second * keys.get("seconds_per_chunk", 2))
    dtype = np.float32 if name == "qwen3_omni_moe" else np.int64
    for (_, types), queue in zip(rows, queues, strict=True):
        parts: list[np.ndarray] = [np.empty((3, 0), dtype)]
        start: Any = 0
        for span in _split_spans(name, types, {models.IMAGE: queue, VIDEO: videos}):
            cells, length = index_span(span.grid, span.interval, dtype is np.float32)
            positions = (start + cells).astype(dtype)  # rounds each sum, as transformers does
            if span.audio_tokens:
                parts += _interleave_audio(positions, span.audio_tokens, chunk)
            else:
                parts.append(positions)
            start = parts[-1].max() + 1 if name in models.OMNI else start + length
        yield np.concatenate(parts, axis=1)
    for queue in () if name == "glm_image" else (*queues[:1], videos):
        queue.check_all_taken()


def _split_spans(name: str, types: np.ndarray, queues: Mapping[int, GridQueue]) -> Iterator[Span]:
    runs = list(models.split_runs(_merge_audio(types) if name in models.OMNI else types))
    for i, (token_type, start, stop) in enumerate(runs):
        tokens = stop - start
        if token_type == _AUDIO_IN_VIDEO:
            span = queues[VIDEO].take(tokens, range(1, tokens), " with audio")
            yield span._replace(audio_tokens=tokens - span.size)
        elif token_type == TEXT and name == "qwen2_5_omni":
            before, after = (
                0 <= j < len(runs) and runs[j][0] == _AUDIO_IN_VIDEO for j in (i - 1, i + 1)
            )
            tokens -= 2 * (before + after)
            if tokens < 0:
                raise RopeError("ids lack the two marks before or after a video with its audio")
            yield from [_TWO_MARKS] * before
            if tokens:
                yield Span(tokens)
            yield from [_TWO_MARKS] * after
        elif token_type in (TEXT, models.AUDIO):
            yield Span(tokens)
        else:
            while tokens > 0:
                yield (span := queues[token_type].take(tokens))
                tokens -= span.size


def _split_images(images: list[Span], counts: Any, rows: int) -> list[list[Span]]:
    if not images or counts is None:  # then each row has all, as in transformers
        return [images] * rows
    counts = np.asarray(counts)
    if counts.shape != (rows,) or counts.sum() != len(images):
        raise RopeError(
            f"images_per_sample must have a number for each of {rows} rows, {len(images)} in "
            f"all, including those still to be generated; got {counts.tolist()}"
        )
    return [images[end - n : end] for end, n in zip(np.cumsum(counts), counts, strict=True)]


def _merge_audio(types: np.ndarray) -> np.ndarray:
    """Return types in which adjacent tokens of video and audio have a type of their own."""
    merged = types.copy()
    for is_either, start, stop in models.split_runs(np.isin(types, (VIDEO, models.AUDIO))):
        if is_either and len(set(types[start:stop].tolist())) == 2:
            merged[start:stop] = _AUDIO_IN_VIDEO
    return merged


def _read_videos(name: str, keys: Keys, vision: Keys, inputs: Keys) -> Iterator[Span]:
    merge = need_key(vision, "spatial_merge_size")
    temporal = need_key(vision, "temporal_merge_size") if name == "ernie4_5_vl_moe" else 1
    more = {"temporal_merge": temporal, "newlines": int(name in models.NEWLINES)}
    grids = models.read_grids(inputs, "video_grid_thw", merge, **more)
    seconds = inputs.get("second_per_grid_ts", inputs.get("video_second_per_grid"))
    seconds = [1.0] * len(grids) if seconds is None else np.asarray(seconds).tolist()
    if len(seconds) != len(grids):
        raise RopeError(f"second_per_grid_ts has {len(seconds)} numbers for {len(grids)} videos")
    for grid, second in zip(grids, seconds, strict=True):
        if name in models.SEPARATE_FRAMES:
            yield from [Span((1, *grid[1:]))] * grid[0]
        elif name in models.OMNI:
            yield Span(grid, (second, float(need_key(keys, "position_id_per_seconds"))))
        elif name == "qwen2_5_vl":
            yield Span(grid, (second * float(need_key(vision, "tokens_per_second")),))
        else:
            yield Span(grid)


def _interleave_audio(video: np.ndarray, audio_tokens: int, chunk: int | None) -> list[np.ndarray]:
    """Return the positions of a video, (3, tokens), and of its audio, as parts in their order."""
    # Audio has a position a token, from the start of the video. Video and audio alternate after
    # so many positions as a chunk has; None sorts them by time.
    audio = np.tile(video[0, 0] + np.arange(audio_tokens), (3, 1)).astype(video.dtype)
    if chunk is None:
        return _sort_by_time(video, audio)
    chunks = itertools.zip_longest(_split_chunks(video, chunk), _split_chunks(audio, chunk))
    return [part for pair in chunks for part in pair if part is not None]


def _sort_by_time(video: np.ndarray, audio: np.ndarray) -> list[np.ndarray]:
    """Return the part until video or audio ends, and the rest of the other."""
    both = np.concatenate([video, audio], axis=1)
    order = np.argsort(both[0], kind="stable")  # the video first where times are equal
    is_video = order < video.shape[1]
    split = 1 + min(np.flatnonzero(tokens)[-1] for tokens in (is_video, ~is_video))
    return [both[:, part] for part in (order[:split], order[split:]) if part.size]


def _split_chunks(positions: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield chunks. After a time that skips chunks, each next one has a single token."""
    start, end = 0, chunk
    for i, time in enumerate(positions[0] - positions[0, :1]):
        if time >= end:
            yield positions[:, start:i]
            start, end = i, end + chunk
    yield positions[:, start:]
