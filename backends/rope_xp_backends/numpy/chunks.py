"""The rotation in numpy alone, chunk by chunk, so that products of a chunk stay in cache.

Its products and sums are the portable path's, so results are equal in every bit; numpy's complex
product would not be, as it may fuse multiply-add.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from rope_xp._core.call import RotationSpec, get_interleaved
from rope_xp_backends.cpu import threads as pool

Arrays = tuple[np.ndarray, ...]

CHUNK_BYTES = 1 << 20
"""Of x. Smaller chunks spend their time in calls, larger ones leave the cache of a core."""
CHUNKS_A_THREAD = 2
"""Fewer chunks do not repay a thread, as threads share Python's lock between calls of numpy."""


def rotate(
    arrays: Arrays, outs: Arrays, cos: np.ndarray, sin: np.ndarray, spec: RotationSpec
) -> None:
    """Rotate arrays, (..., head_dim), into outs, each its array or disjoint from it.

    cos and sin, (..., r/2), have as many axes and broadcast against them.
    """
    interleaved, doubled = get_interleaved(spec), cos
    if interleaved[0] == interleaved[1]:  # one product over rows twice as long
        doubled = np.repeat(cos, 2, axis=-1) if interleaved[0] else np.concatenate([cos, cos], -1)
    sines = (sin, -sin) if spec.inverse else (-sin, sin)
    factors, operands = (doubled, *sines), zip(arrays, outs, strict=True)
    chunks = [chunk for x, out in operands for chunk in _split(x, out, factors)]

    def work(start: int, stop: int) -> None:
        for x, out, parts in chunks[start:stop]:
            _rotate_chunk(x, out, parts, interleaved, spec.rotary_offset)

    pool.share(work, len(chunks), min(pool.limit(), len(chunks) // CHUNKS_A_THREAD))


def _split(
    x: np.ndarray, out: np.ndarray, factors: Arrays
) -> Iterator[tuple[np.ndarray, np.ndarray, Arrays]]:
    if x.nbytes <= CHUNK_BYTES:
        yield x, out, factors
        return
    rows = max(CHUNK_BYTES // max(x.shape[-1] * factors[1].itemsize, 1), 1)
    axes: list[list[slice]] = []
    for n in x.shape[-2::-1]:  # innermost axes whole, as far as they fit
        step = max(min(rows, n), 1)
        axes.insert(0, [slice(i, i + step) for i in range(0, n, step)])
        rows = max(rows // step, 1)
    lengths = factors[0].shape
    for chunk in product(*axes):
        part = tuple([s if n > 1 else slice(None) for s, n in zip(chunk, lengths, strict=False)])
        yield x[chunk], out[chunk], tuple([factor[part] for factor in factors])


def _rotate_chunk(
    x: np.ndarray, out: np.ndarray, factors: Arrays, interleaved: tuple[bool, bool], offset: int
) -> None:
    cos, negative_sin, sin = factors
    end = offset + 2 * sin.shape[-1]
    y, target = x, out
    if end - offset != x.shape[-1]:
        y, target = x[..., offset:end], out[..., offset:end]
        out[..., :offset] = x[..., :offset]
        out[..., end:] = x[..., end:]
    if y.dtype != cos.dtype:
        y = y.astype(cos.dtype)
    x1, x2 = _split_pairs(y, interleaved[0])
    if interleaved[0] == interleaved[1]:
        straight = y * cos
    else:
        straight = np.empty(y.shape, y.dtype)
        for half, result in zip((x1, x2), _split_pairs(straight, interleaved[1]), strict=True):
            np.multiply(half, cos, out=result)
    crossed = np.empty(y.shape, y.dtype)
    first, second = _split_pairs(crossed, interleaved[1])
    np.multiply(x2, negative_sin, out=first)
    np.multiply(x1, sin, out=second)
    # x1 cos + x2 (-sin) has the bits of x1 cos - x2 sin.
    if target.dtype == y.dtype:
        np.add(straight, crossed, out=target)
    else:
        target[...] = straight + crossed


def _split_pairs(x: np.ndarray, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the first and second components of all pairs."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]
