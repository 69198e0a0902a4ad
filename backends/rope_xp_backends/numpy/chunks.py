"""The rotation in numpy alone, chunk by chunk, so that what is computed in between stays in cache.

The usual spelling writes whole arrays of products to memory and reads them again. Here a chunk's
products are added while they are still there. The products and sums are the portable path's, so
results are equal in every bit; numpy's complex product would not be, as it may fuse multiply-add.
"""

import numpy as np

from rope_xp_backends.cpu import threads as pool

CHUNK_BYTES = 1 << 20
"""Of x. Smaller chunks spend their time in calls, larger ones leave the cache of a core."""
CHUNKS_A_THREAD = 2
"""Threads take turns at Python's lock between calls of numpy, which few chunks do not repay."""


def rotate(
    x: np.ndarray,
    out: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    interleaved_in: bool,
    interleaved_out: bool,
    offset: int,
) -> None:
    """Rotate x, (batch, tokens, heads, head_dim), into out, which is x or lies apart from it.

    cos and sin are (batch or 1, tokens or 1, r/2), the sine with its sign.
    """
    batch, tokens, heads, head_dim = x.shape
    rows = max(CHUNK_BYTES // max(heads * head_dim * cos.itemsize, 1), 1)
    few_tokens = max(min(rows, tokens), 1)
    few_batches = max(rows // few_tokens, 1)
    chunks = [
        (slice(b, b + few_batches), slice(t, t + few_tokens))
        for b in range(0, batch, few_batches)
        for t in range(0, tokens, few_tokens)
    ]

    def work(start: int, stop: int) -> None:
        for at in chunks[start:stop]:
            c, s = _part(cos, at), _part(sin, at)
            _rotate(x[at], out[at], c, s, interleaved_in, interleaved_out, offset)

    pool.share(work, len(chunks), min(pool.limit(), len(chunks) // CHUNKS_A_THREAD))


def _part(table: np.ndarray, at: tuple[slice, slice]) -> np.ndarray:
    """Return the rows of a table for a chunk, with an axis of length 1 for heads."""
    own = [
        part if length > 1 else slice(None) for part, length in zip(at, table.shape, strict=False)
    ]
    return table[(*own, None)]


def _rotate(
    x: np.ndarray,
    out: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    interleaved_in: bool,
    interleaved_out: bool,
    offset: int,
) -> None:
    end = offset + 2 * cos.shape[-1]
    y = x[..., offset:end]
    if y.dtype != cos.dtype:
        y = y.astype(cos.dtype)
    x1, x2 = _halves(y, interleaved_in)
    if interleaved_in == interleaved_out:
        # One product over rows twice as long.
        kept = y * (
            np.repeat(cos, 2, axis=-1) if interleaved_in else np.concatenate([cos, cos], -1)
        )
    else:
        kept = np.empty(y.shape, y.dtype)
        for half, place in zip((x1, x2), _halves(kept, interleaved_out), strict=True):
            np.multiply(half, cos, out=place)
    crossed = np.empty(y.shape, y.dtype)
    first, second = _halves(crossed, interleaved_out)
    np.multiply(x2, -sin, out=first)
    np.multiply(x1, sin, out=second)
    # x1 cos + x2 (-sin) has the bits of x1 cos - x2 sin.
    if out.dtype == y.dtype:
        np.add(kept, crossed, out=out[..., offset:end])
    else:
        out[..., offset:end] = kept + crossed
    out[..., :offset] = x[..., :offset]
    out[..., end:] = x[..., end:]


def _halves(x: np.ndarray, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the first and second components of all pairs."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]
