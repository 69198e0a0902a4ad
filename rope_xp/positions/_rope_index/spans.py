"""Positions of models that count span by span: text, images, videos and audio."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.hf._files import read_part
from rope_xp.positions._rope_index import indexer
from rope_xp.positions._rope_index.indexer import AUDIO, IMAGE, TEXT, VIDEO, GridQueue, Indexer
from rope_xp.positions._values import index_span

_AUDIO_IN_VIDEO = -1  # the type of runs with tokens of a video and of its audio


class Span(NamedTuple):
    """Consecutive tokens of one text, image or video."""

    grid: int | tuple[int, ...]  # text tokens, or frames, height and width after merging
    interval: tuple[float, ...] = ()  # factors of the positions of frames, one after the other
    audio_tokens: int = 0  # tokens of audio among those of a video


_TWO_MARKS = Span((2, 1, 1), (0.0,))
"""The marks of vision and audio, which have one position together."""


class SpanIndexer(Indexer):
    """Counts text, images, videos and audio span by span."""

    def __init__(
        self,
        name: str,
        keys: Mapping[str, Any],
        inputs: Mapping[str, Any],
        is_packed: bool,
        *,
        rows: int,
    ) -> None:
        super().__init__(keys, is_packed)
        self._is_glm_image, self._is_omni = name == "glm_image", name in indexer.OMNI
        if self._is_glm_image:
            self.token_ids.clear()  # marks alone determine the types
        if self._is_omni:
            self.token_ids[AUDIO] = keys.get("audio_token_id", keys.get("audio_token_index"))
        self.dtype = np.float32 if name == "qwen3_omni_moe" else np.int64
        self.padding = int(name in ("glm_image", "qwen2_5_omni"))
        # The positions after which video and audio alternate; None sorts them by time.
        self._chunk: int | None = None
        if name == "qwen2_5_omni":
            per_second = indexer.need_key(keys, "position_id_per_seconds")
            self._chunk = int(per_second * keys.get("seconds_per_chunk", 2))
        self._marks: list[int] = []
        if name.startswith("glm"):  # the image tokens between marks: of a video, in GLM-Image all
            modality = "image" if self._is_glm_image else "video"
            marks = [f"{modality}_{end}_token_id" for end in ("start", "end")]
            self._marks = [indexer.need_key(keys, mark) for mark in marks]
        vision: Mapping[str, Any] = {"spatial_merge_size": 1}
        if not self._is_glm_image:
            vision = read_part(indexer.need_key(keys, "vision_config"))
        merge = indexer.need_key(vision, "spatial_merge_size")
        images = [Span(grid) for grid in _read_grids(name, inputs, "image_grid_thw", merge)]
        self._videos = GridQueue("video_grid_thw", [*_read_videos(name, keys, vision, inputs)])
        if self._is_glm_image:  # which has more grids, for images to be generated
            counts = inputs.get("images_per_sample")
            if counts is None and images and is_packed and rows > 1:
                raise RopeError("cu_seqlens needs images_per_sample, a number for each sequence")
            rows_of_images = _split_images(images, counts, rows)
            self._images = [GridQueue("image_grid_thw", grids) for grids in rows_of_images]
        else:  # all rows take from the images of the batch
            self._images = [GridQueue("image_grid_thw", images)] * rows
            self.queues = (*self._images, self._videos)

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        types = super().token_types(ids)
        if self._marks:
            is_start, is_end = (ids == mark for mark in self._marks)
            starts, ends = np.cumsum(is_start, axis=-1), np.cumsum(is_end, axis=-1)
            is_inside = starts > ends
            if self._is_glm_image:
                # The last image may be open: it is still to be generated.
                types[is_inside & ~is_start & (ends < ends[..., -1:])] = IMAGE
            else:
                types[is_inside & (ids == self.token_ids[IMAGE])] = VIDEO
        return types

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        parts: list[np.ndarray] = [np.empty((3, 0), self.dtype)]
        start: Any = 0
        for span in self._split_spans(types, self._images[row]):
            cells, length = index_span(span.grid, span.interval, self.dtype is np.float32)
            positions = (start + cells).astype(self.dtype)  # rounds each sum, as transformers does
            if span.audio_tokens:
                parts += _interleave_audio(positions, span.audio_tokens, self._chunk)
            else:
                parts.append(positions)
            start = parts[-1].max() + 1 if self._is_omni else start + length
        return np.concatenate(parts, axis=1)

    def _split_spans(self, types: np.ndarray, images: GridQueue) -> Iterator[Span]:
        queues = {IMAGE: images, VIDEO: self._videos}
        runs = list(indexer.split_runs(_merge_audio(types) if self._is_omni else types))
        for i, (token_type, start, stop) in enumerate(runs):
            tokens = stop - start
            if token_type == _AUDIO_IN_VIDEO:
                span = self._videos.take()
                size = int(np.prod(span.grid))
                if size >= tokens:
                    raise self._videos.mismatch(span.grid, size, tokens)
                yield span._replace(audio_tokens=tokens - size)
            elif token_type == TEXT and self._chunk is not None:
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
            elif token_type in (TEXT, AUDIO if self._is_omni else TEXT):
                yield Span(tokens)
            elif token_type in queues:
                queue = queues[token_type]
                while tokens > 0:
                    span = queue.take()
                    size = int(np.prod(span.grid))
                    if size > tokens:
                        raise queue.mismatch(span.grid, size, tokens)
                    tokens -= size
                    yield span
            else:
                raise RopeError(
                    f"mm_token_type_ids must be 0 (text), 1 (image) or 2 (video); got {token_type}"
                )


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
    for is_either, start, stop in indexer.split_runs(np.isin(types, (VIDEO, AUDIO))):
        if is_either and len(set(types[start:stop].tolist())) == 2:
            merged[start:stop] = _AUDIO_IN_VIDEO
    return merged


def _read_grids(
    name: str, inputs: Mapping[str, Any], key: str, merge: int, temporal_merge: int = 1
) -> list[tuple[int, ...]]:
    newlines = int(name in indexer.NEWLINES)
    grids = indexer.read_grids(inputs, key, merge, temporal_merge)
    return [(frames, height, width + newlines) for frames, height, width in grids]


def _read_videos(
    name: str, keys: Mapping[str, Any], vision: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Iterator[Span]:
    temporal = indexer.need_key(vision, "temporal_merge_size") if name == "ernie4_5_vl_moe" else 1
    spatial = indexer.need_key(vision, "spatial_merge_size")
    grids = _read_grids(name, inputs, "video_grid_thw", spatial, temporal)
    seconds = inputs.get("second_per_grid_ts", inputs.get("video_second_per_grid"))
    seconds = [1.0] * len(grids) if seconds is None else np.asarray(seconds).tolist()
    if len(seconds) != len(grids):
        raise RopeError(f"second_per_grid_ts has {len(seconds)} numbers for {len(grids)} videos")
    for grid, second in zip(grids, seconds, strict=True):
        if name in indexer.SEPARATE_FRAMES:
            yield from [Span((1, *grid[1:]))] * grid[0]
        elif name in indexer.OMNI:
            yield Span(grid, (second, float(indexer.need_key(keys, "position_id_per_seconds"))))
        elif name == "qwen2_5_vl":
            yield Span(grid, (second * float(indexer.need_key(vision, "tokens_per_second")),))
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
