"""Positions of a video and its sound, token by token in the order in which Qwen-Omni has them."""

import itertools
from collections.abc import Iterator

import numpy as np


def woven(video: np.ndarray, sound: int, chunk: int | None) -> list[np.ndarray]:
    """Return parts of a video and its sound in their order.

    Parameters
    ----------
    video : (3, tokens)
        Its positions.
    sound : int
        Tokens of sound, one position each, from where the video starts.
    chunk : int or None
        Positions after which video and sound take turns. None: by their times.
    """
    heard = np.tile(video[0, 0] + np.arange(sound), (3, 1)).astype(video.dtype)
    if chunk is None:
        return _by_time(video, heard)
    seen, listened = (list(_chunks(x, chunk)) for x in (video, heard))
    pairs = itertools.zip_longest(seen, listened)
    return [part for pair in pairs for part in pair if part is not None]


def _by_time(video: np.ndarray, heard: np.ndarray) -> list[np.ndarray]:
    """Return what comes until one of both has ended, and what is left of the other."""
    both = np.concatenate([video, heard], axis=1)
    order = np.argsort(both[0], kind="stable")  # the video first, where times are equal
    ends = [np.flatnonzero(order < video.shape[1]), np.flatnonzero(order >= video.shape[1])]
    split = min(int(end[-1]) + 1 if end.size else 0 for end in ends)
    parts = (both[:, order[:split]], both[:, order[split:]])
    return [part for part in parts if part.size]


def _chunks(x: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield what each chunk has. Time that leaps over chunks leaves the next ones a token each."""
    start, last = 0, chunk
    for i, time in enumerate(x[0] - x[0, :1]):
        if time >= last:
            yield x[:, start:i]
            start, last = i, last + chunk
    yield x[:, start:]
