"""The rotation in numpy alone, chunk by chunk, so that products of a chunk stay in cache.

Its products and sums are the portable path's, so results are equal in every bit; numpy's complex
product would not be, as it may fuse multiply-add.
"""

from itertools import product

import numpy as np

from rope_xp_backends.cpu import threads as pool

CHUNK_BYTES = 1 << 20
"""Of x. Smaller chunks spend their time in calls, larger ones leave the cache of a core."""
CHUNKS_A_THREAD = 2
"""Fewer chunks do not repay a thread, as threads share Python's lock between calls of numpy."""


def rotate(
    x: np.ndarray,
    out: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    interleaved: tuple[bool, bool],
    offset: int,
) -> None:
    """Rotate x, (..., head_dim), into out, which is x or disjoint from it.

    cos and sin, (..., r/2), have as many axes and broadcast against x; the sine has its sign.
    """
    rows = max(CHUNK_BYTES // max(x.shape[-1] * cos.itemsize, 1), 1)
    axes: list[list[slice]] = []
    for n in x.shape[-2::-1]:  # innermost axes whole, as far as they fit
        step = max(min(rows, n), 1)
        axes.insert(0, [slice(i, i + step) for i in range(0, n, step)])
        rows = max(rows // step, 1)
    chunks = list(product(*axes))

    def work(start: int, stop: int) -> None:
        for chunk in chunks[start:stop]:
            part = tuple(
                [s if n > 1 else slice(None) for s, n in zip(chunk, cos.shape, strict=False)]
            )
            _rotate_chunk(x[chunk], out[chunk], cos[part], sin[part], interleaved, offset)

    pool.share(work, len(chunks), min(pool.limit(), len(chunks) // CHUNKS_A_THREAD))


def _rotate_chunk(
    x: np.ndarray,
    out: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    interleaved: tuple[bool, bool],
    offset: int,
) -> None:
    end = offset + 2 * cos.shape[-1]
    y = x[..., offset:end]
    if y.dtype != cos.dtype:
        y = y.astype(cos.dtype)
    x1, x2 = _split_pairs(y, interleaved[0])
    if interleaved[0] == interleaved[1]:
        # One product over rows twice as long.
        both = np.repeat(cos, 2, axis=-1) if interleaved[0] else np.concatenate([cos, cos], -1)
        straight = y * both
    else:
        straight = np.empty(y.shape, y.dtype)
        for half, target in zip((x1, x2), _split_pairs(straight, interleaved[1]), strict=True):
            np.multiply(half, cos, out=target)
    crossed = np.empty(y.shape, y.dtype)
    first, second = _split_pairs(crossed, interleaved[1])
    np.multiply(x2, -sin, out=first)
    np.multiply(x1, sin, out=second)
    # x1 cos + x2 (-sin) has the bits of x1 cos - x2 sin.
    if out.dtype == y.dtype:
        np.add(straight, crossed, out=out[..., offset:end])
    else:
        out[..., offset:end] = straight + crossed
    out[..., :offset] = x[..., :offset]
    out[..., end:] = x[..., end:]


def _split_pairs(x: np.ndarray, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the first and second components of all pairs."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]
