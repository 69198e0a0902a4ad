"""Which tokens of a sequence are text, images and videos, as models with M-RoPE count them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.hf._counting import Rule

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
"""What mm_token_type_ids say, those of transformers' processors."""
SOUNDING = -1
"""Tokens of a video among which are those of its sound."""
_NAMES = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}


class Span(NamedTuple):
    """Tokens in a row."""

    tokens: int | tuple[int, int, int]
    """How many of text, or frames, height and width after merging."""
    interval: tuple[float, ...] = ()
    """Factors that make positions of frames, multiplied in float32 one after the other."""
    sound: int = 0
    """Tokens of sound among those of a video."""


_TOGETHER = Span((2, 1, 1), (0.0,))
"""Two tokens at one position."""


class Numbered(Protocol):
    """What tells images and videos by the numbers of their tokens."""

    @property
    def image(self) -> int | None: ...
    @property
    def video(self) -> int | None: ...


def types(ids: np.ndarray, rule: Numbered) -> np.ndarray:
    """Return what each token of a batch is, by its number."""
    kinds = np.zeros(ids.shape, np.int64)
    kinds[ids == rule.image] = IMAGE
    kinds[ids == rule.video] = VIDEO
    if not isinstance(rule, Rule):
        return kinds
    if rule.by_time:
        kinds[ids == rule.audio] = AUDIO
    if rule.to_image is not None:
        started, ended = (ids == mark for mark in rule.to_image)
        begun, closed = np.cumsum(started, axis=-1), np.cumsum(ended, axis=-1)
        # The last may be open: that image is still to be generated.
        kinds[(begun > closed) & ~started & (closed < closed[..., -1:])] = IMAGE
    if rule.marks is not None:
        begun, ended = (np.cumsum(ids == mark, axis=-1) for mark in rule.marks)
        kinds[(ids == rule.image) & (begun > ended)] = VIDEO
    return kinds


def runs(kinds: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each run of equal tokens, where it begins and where it ends."""
    ends = [*(np.flatnonzero(np.diff(kinds)) + 1).tolist(), kinds.size]
    for first, end in zip([0, *ends], ends, strict=False):
        if first < end:
            yield int(kinds[first]), first, end


def sizes(
    inputs: Mapping[str, Any], name: str, merge: int, frames_merged: int = 1
) -> list[tuple[int, int, int]]:
    """Return frames, height and width of each image or video, after merging."""
    if inputs.get(name) is None:
        return []
    grids = np.asarray(inputs[name])
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


class Grids:
    """The grids of a batch, handed out in the order in which their tokens come."""

    def __init__(self, inputs: Mapping[str, Any], rule: Rule) -> None:
        self.rule = rule
        self.left = {
            IMAGE: iter([Span(grid) for grid in sizes(inputs, "image_grid_thw", rule.merge)]),
            VIDEO: iter(self._videos(inputs)),
        }

    def _videos(self, inputs: Mapping[str, Any]) -> Iterator[Span]:
        rule = self.rule
        grids = sizes(inputs, "video_grid_thw", rule.merge, rule.frames_merged)
        seconds = inputs.get("second_per_grid_ts", inputs.get("video_second_per_grid"))
        seconds = [1.0] * len(grids) if seconds is None else np.asarray(seconds).tolist()
        if len(seconds) != len(grids):
            msg = f"second_per_grid_ts has {len(seconds)} numbers for {len(grids)} videos"
            raise RopeError(msg)
        for size, second in zip(grids, seconds, strict=True):
            if rule.by_frame:
                yield from [Span((1, *size[1:]))] * size[0]
            elif rule.per_second is None:
                yield Span(size)
            elif rule.by_time:
                yield Span(size, (second, rule.per_second))
            else:
                yield Span(size, (second * rule.per_second,))

    def take(self, kind: int, tokens: int) -> Iterator[Span]:
        """Yield the grids of as many tokens of a kind."""
        left = tokens
        while left > 0:
            span = self.next(kind)
            size = int(np.prod(span.tokens))
            if size > left:
                raise self.too_large(kind, span, left)
            left -= size
            yield span

    def next(self, kind: int) -> Span:
        """Return the grid that comes next."""
        span = next(self.left[kind], None)
        if span is None:
            raise RopeError(f"{_NAMES[kind]} has fewer grids than ids have tokens for")
        return span

    def too_large(self, kind: int, span: Span, tokens: int) -> RopeError:
        """Return why a grid does not fit."""
        return RopeError(
            f"{_NAMES[kind]} has a grid of {span.tokens} after merging, "
            f"{np.prod(span.tokens)} tokens, where ids have {tokens}"
        )

    def check_all_taken(self) -> None:
        """Check that each grid had its tokens."""
        if self.rule.to_image is not None:
            return  # the rest are for images to be generated
        for kind, name in _NAMES.items():
            if next(self.left[kind], None) is not None:
                raise RopeError(f"{name} has more grids than ids have tokens for")


def by_row(inputs: Mapping[str, Any], rule: Rule, rows: int) -> list[Grids]:
    """Return the grids of each row: those of a batch, or its own if some are no part of ids."""
    if rule.to_image is None:
        return [Grids(inputs, rule)] * rows
    grids, counts = inputs.get("image_grid_thw"), inputs.get("images_per_sample")
    if grids is None or counts is None:  # then each row has them all, as in transformers
        return [Grids(inputs, rule) for _ in range(rows)]
    grids, counts = np.asarray(grids), np.asarray(counts)
    if counts.shape != (rows,) or counts.sum() != len(grids):
        msg = (
            f"images_per_sample must have a number for each of {rows} rows, {len(grids)} in all, "
            f"those still to be generated too; got {counts.tolist()}"
        )
        raise RopeError(msg)
    parts = np.split(grids, np.cumsum(counts)[:-1])
    return [Grids({"image_grid_thw": part}, rule) for part in parts]


def spans(kinds: np.ndarray, grids: Grids) -> Iterator[Span]:
    """Yield the spans of a sequence, given what each token is."""
    rule = grids.rule
    stretches = list(runs(_with_sound(kinds)))
    for i, (kind, first, end) in enumerate(stretches):
        tokens = end - first
        if kind == SOUNDING and rule.by_time:
            span = grids.next(VIDEO)
            sound = tokens - int(np.prod(span.tokens))
            if sound < 1:
                raise grids.too_large(VIDEO, span, tokens)
            yield span._replace(sound=sound)
        elif kind == TEXT and rule.chunk is not None:  # whose marks around both are together
            beside = [j for j in (i - 1, i + 1) if 0 <= j < len(stretches)]
            around = [j for j in beside if stretches[j][0] == SOUNDING]
            if tokens < 2 * len(around):
                raise RopeError("ids lack the two marks before or after a video with its sound")
            if i - 1 in around:
                yield _TOGETHER
            if tokens > 2 * len(around):
                yield Span(tokens - 2 * len(around))
            if i + 1 in around:
                yield _TOGETHER
        elif kind in (TEXT, AUDIO if rule.by_time else TEXT):
            yield Span(tokens)
        elif kind in (IMAGE, VIDEO):
            yield from grids.take(kind, tokens)
        else:
            msg = f"mm_token_type_ids must be 0 (text), 1 (image) or 2 (video); got {kind}"
            raise RopeError(msg)


def _with_sound(kinds: np.ndarray) -> np.ndarray:
    """Return kinds, where a video and its sound side by side are a kind of their own."""
    merged = kinds.copy()
    for either, first, end in runs(np.isin(kinds, (VIDEO, AUDIO))):
        if either and len(set(kinds[first:end].tolist())) == 2:
            merged[first:end] = SOUNDING
    return merged
