"""Positions of a video and its audio in the order of the tokens of Qwen-Omni."""

import itertools
from collections.abc import Iterator

import numpy as np


def interleave_audio(video: np.ndarray, audio_tokens: int, chunk: int | None) -> list[np.ndarray]:
    """Return the positions of a video, (3, tokens), and of its audio, as parts in their order.

    Audio has a position a token, from the start of the video. Video and audio alternate after
    ``chunk`` positions; None sorts them by time.
    """
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
    parts = (both[:, order[:split]], both[:, order[split:]])
    return [part for part in parts if part.size]


def _split_chunks(positions: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield chunks. After a time that skips chunks, each next one has a single token."""
    start, end = 0, chunk
    for i, time in enumerate(positions[0] - positions[0, :1]):
        if time >= end:
            yield positions[:, start:i]
            start, end = i, end + chunk
    yield positions[:, start:]
