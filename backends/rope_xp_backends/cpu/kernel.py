"""The rotation for CPUs, compiled by numba: angles, q and k in one pass over memory.

Each step is the portable path's, in the same order and without fused multiply-add, so results are
equal in every bit. Arrays may have any strides but along head_dim, which is contiguous.
"""

import os
from collections.abc import Callable

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError

from rope_xp._contract.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._rotation.tables import TOP_DIGIT

from .llvm import DTYPES, ELEMENTS, STREAM_ALIGNMENT, copy, settle, turn

Error = NumbaError
"""What numba raises where it cannot compile."""

LANES = 16
"""Pairs rotated at once: one vector of AVX-512, 2 of AVX2 or 4 of NEON to work in parallel."""
BLOCK = 64
"""Tokens whose angles are held at once: 32 KB at head_dim 128. Where the tokens of a head lie side
by side, this many are read in a row."""

_jit = numba.njit(nogil=True)


def compiled(dtype: str, read_pairs: bool, write_pairs: bool) -> Callable[..., None]:
    """Return the kernel for a dtype, newly compiled.

    Parameters
    ----------
    dtype : {"float16", "bfloat16", "float32", "float64"}
        Of q and k.
    read_pairs, write_pairs : bool
        Whether pairs lie side by side, (2i, 2i+1), where they are read and written. Else they lie
        half apart, (i, i + r/2).

    Returns
    -------
    callable
        ``kernel(q, q_out, k, k_out, positions, low, middle, high, cos, sin, offset, inverse,
        stream, start, stop)``, which releases the GIL. q, k and their results are (batch, tokens,
        heads, head_dim), as bits where 16 bits wide; k may have no heads. positions are (batch or
        1, tokens or 1) int64, or empty for 0, 1, 2, ...; low, middle and high are as in
        :class:`rope_xp._contract.library.Digits`. Or they are all empty and cos and sin are given,
        (batch or 1, tokens or 1, r/2) in the dtype of the arithmetic. ``stream`` has results
        written past the caches. It rotates rows ``start`` to ``stop`` of the batch * tokens there
        are.
    """
    element, _, computed, _ = ELEMENTS[dtype]
    width = computed.bitwidth // 8
    scratch = np.float64 if width == 8 else np.float32
    # numba finds a kernel on disk by the numbers in its closure; functions in it would be new.
    kind, reads, writes = DTYPES.index(dtype), int(read_pairs), int(write_pairs)

    def kernel(
        q,
        q_out,
        k,
        k_out,
        positions,
        low,
        middle,
        high,
        given_cos,
        given_sin,
        offset,
        inverse,
        stream,
        start,
        stop,
    ):
        length = q.shape[1]
        looked_up = low.size > 0
        pairs = low.shape[1] // 2 if looked_up else given_cos.shape[2]
        cos, sin = np.empty((BLOCK, pairs), scratch), np.empty((BLOCK, pairs), scratch)
        spare = np.empty(2 * pairs * width, np.uint8)
        row = start
        while row < stop:
            batch, token = row // length, row % length
            tokens = min(BLOCK, stop - row, length - token)
            for i in range(tokens):
                negative = inverse
                if looked_up:
                    position = _position(positions, batch, token + i)
                    _look_up(position, low, middle, high, cos[i], sin[i])
                    negative = (position < 0) != inverse
                else:
                    _take(given_cos, batch, token + i, cos[i])
                    _take(given_sin, batch, token + i, sin[i])
                if negative:
                    for n in range(pairs):
                        sin[i, n] = -sin[i, n]
            block = (batch, token, tokens, offset, stream)
            _rotate(q, q_out, block, cos, sin, spare, kind, reads, writes)
            _rotate(k, k_out, block, cos, sin, spare, kind, reads, writes)
            row += tokens
        if stream:
            settle()

    array = types.Array(element, 4, "A", readonly=True)
    result = types.Array(element, 4, "A")
    positions = types.Array(types.int64, 2, "A", readonly=True)
    table = types.Array(types.float32, 2, "C", readonly=True)
    given = types.Array(computed, 3, "A", readonly=True)
    signature = types.void(
        *(array, result, array, result, positions, table, table, table, given, given),
        *(types.int64, types.boolean, types.boolean, types.int64, types.int64),
    )
    cache = os.environ.get("ROPE_XP_NUMBA_CACHE", "") not in ("", "0")
    made = numba.njit([signature], nogil=True, cache=cache)(kernel)
    made.disable_compile()
    return made  # type: ignore[no-any-return]  # numba has no types


@_jit
def _position(positions, batch, token):
    if positions.size == 0:
        return token
    return positions[min(batch, positions.shape[0] - 1), min(token, positions.shape[1] - 1)]


@_jit
def _take(table, batch, token, row):
    b, t = min(batch, table.shape[0] - 1), min(token, table.shape[1] - 1)
    for i in range(row.size):
        row[i] = table[b, t, i]


@_jit
def _look_up(position, low, middle, high, cos, sin):
    """As rope_xp._rotation.angles.cos_sin, without the sign: a digit of 0 changes nothing."""
    pairs = cos.size
    inside = -LIMIT < position < LIMIT
    count = abs(position)
    row = low[count & (DIGIT - 1)]
    for i in range(pairs):
        cos[i], sin[i] = row[i], row[pairs + i]
    for table, digit in (
        (middle, (count >> DIGIT_BITS) & (DIGIT - 1)),
        (high, (count >> (2 * DIGIT_BITS)) if inside else TOP_DIGIT),
    ):
        if digit > 0:
            row = table[digit]
            for i in range(pairs):
                c = cos[i] * row[i] - sin[i] * row[pairs + i]
                sin[i] = sin[i] * row[i] + cos[i] * row[pairs + i]
                cos[i] = c


@_jit
def _rotate(x, y, block, cos, sin, spare, kind, reads, writes):
    """Rotate all heads of a block of tokens."""
    numba.literally(kind), numba.literally(reads), numba.literally(writes)
    batch, token, tokens, offset, stream = block
    heads, pairs, size = x.shape[2], cos.shape[1], x.itemsize
    before, behind = offset * size, (x.shape[3] - offset - 2 * pairs) * size
    after = before + 2 * pairs * size
    passes = before + behind > 0 and x.ctypes.data != y.ctypes.data
    x0 = np.int64(x.ctypes.data) + batch * x.strides[0] + token * x.strides[1]
    y0 = np.int64(y.ctypes.data) + batch * y.strides[0] + token * y.strides[1]
    whole = pairs - pairs % LANES
    steps = y.strides[0] | y.strides[1] | y.strides[2] | (pairs * size)
    stream = stream and ((y0 + before) | steps) % STREAM_ALIGNMENT == 0
    # In the order of memory: tokens outside where heads lie closer together than they.
    outside = abs(x.strides[2]) <= abs(x.strides[1])
    for i in range(tokens if outside else heads):
        for j in range(heads if outside else tokens):
            t, h = (i, j) if outside else (j, i)
            source = x0 + t * x.strides[1] + h * x.strides[2]
            target = y0 + t * y.strides[1] + h * y.strides[2]
            if passes:
                copy(target, source, before)
                copy(target + after, source + after, behind)
            source += before
            target += before
            if source == target and reads != writes:
                # Results lie elsewhere than what they come from: read the row before it is gone.
                copy(spare.ctypes.data, source, 2 * pairs * size)
                source = np.int64(spare.ctypes.data)
            c = np.int64(cos.ctypes.data) + t * cos.strides[0]
            s = np.int64(sin.ctypes.data) + t * sin.strides[0]
            ahead = x.strides[1]
            if stream and source != target:
                for first in range(0, whole, LANES):
                    turn(source, target, c, s, pairs, first, ahead, kind, reads, writes, LANES, 1)
            else:
                for first in range(0, whole, LANES):
                    turn(source, target, c, s, pairs, first, ahead, kind, reads, writes, LANES, 0)
            for first in range(whole, pairs):
                turn(source, target, c, s, pairs, first, ahead, kind, reads, writes, 1, 0)
