"""The rotation for CPUs, compiled by numba: angles, q and k in one pass over memory.

Each step is the portable path's, in the same order and without fused multiply-add, so results are
equal in every bit. Arrays may have any strides but along head_dim, which is contiguous.
"""

import ctypes
import os
from collections.abc import Callable

import numba
import numpy as np
from numba import types

from rope_xp._contract.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._rotation.tables import TOP_DIGIT

from .llvm import DTYPES, ELEMENTS, STREAM_ALIGNMENT, copy, peek, settle, turn
from .llvm_angles import look_up, name, pick, take, turn_on
from .plan import FIELDS

MANY = 16
"""Pairs rotated at once: one vector of AVX-512, 2 of AVX2 or 4 of NEON to work in parallel."""
FEW = 8
"""Of those that are left. What remains is rotated pair by pair."""
BLOCK = 64
"""Tokens whose angles are held at once: 32 KB at head_dim 128. Where the tokens of a head lie side
by side, this many are read in a row."""

HEAD = object.__basicsize__
"""An object of numpy begins with that of Python, and behind it is the address of its elements."""
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEMSIZES = tuple(ITEMSIZE[dtype] for dtype in DTYPES)
WIDTHS = tuple(max(size, 4) for size in ITEMSIZES)

_BOXED, _LENGTH, _PAIRS, _INVERSE, _BEFORE, _BEHIND = range(6)
_LOOKED_UP, _COUNTED, _PARTED, _COMPONENTS = range(6, 10)
_LOW, _MIDDLE, _HIGH, _FREQUENCIES, _COMPONENT = range(10, 15)
_A_SKIP, _A_BATCH, _A_TOKEN, _A_PIECE, _B_SKIP, _B_BATCH, _B_TOKEN, _B_PIECE = range(15, 23)
_Q_END, _K_END = FIELDS.index("q_heads"), FIELDS.index("k_heads")

_jit = numba.njit(nogil=True)


def finds_elements() -> bool:
    """Return whether the address of an array's elements is where kernels look for it."""
    x = np.empty(1)
    return ctypes.c_void_p.from_address(id(x) + HEAD).value == x.ctypes.data


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
        ``kernel(words, q, q_out, k, k_out, a, b, stream, start, stop)``, which releases the GIL.
        ``words`` is the address of what :mod:`rope_xp_backends.cpu.plan` tells, the next six are
        addresses of elements, or of the objects of numpy that hold them. ``stream`` has results
        written past the caches. It rotates rows ``start`` to ``stop`` of the batch * tokens there
        are.
    """
    computed = ELEMENTS[dtype][2]
    width = computed.bitwidth // 8
    # numba finds a kernel on disk by the numbers in its closure; functions in it would be new.
    kind, reads, writes = DTYPES.index(dtype), int(read_pairs), int(write_pairs)
    wide, size = int(width == 8), ITEMSIZE[dtype]

    def kernel(words, q, q_out, k, k_out, a, b, stream, start, stop):
        if peek(words, _BOXED):
            q, q_out, k, k_out = _held(q), _held(q_out), _held(k), _held(k_out)
            a, b = _held(a), _held(b)
        a, b = a + peek(words, _A_SKIP), b + peek(words, _B_SKIP)
        length, pairs, inverse = peek(words, _LENGTH), peek(words, _PAIRS), peek(words, _INVERSE)
        looked_up = peek(words, _LOOKED_UP)
        pieces, mixed = _pieces(peek(words, _COMPONENT), peek(words, _COMPONENTS), pairs)
        # cos and sin of a block, those of one component by themselves, and a row that is held.
        scratch = np.empty((2 + 2 * mixed) * BLOCK * pairs * width + 2 * pairs * size, np.uint8)
        here = np.int64(scratch.ctypes.data)
        angles = BLOCK * pairs * width
        rows, own = (here, here + angles), (here + 2 * angles, here + 3 * angles)
        spare = here + (2 + 2 * mixed) * angles
        row = start
        while row < stop:
            batch, token = row // length, row % length
            tokens = min(BLOCK, stop - row, length - token)
            if looked_up:
                for i in range(pieces.shape[0]):
                    piece = (pieces[i, 0], pieces[i, 1], pieces[i, 2])
                    to = own if mixed else rows
                    _look_up(words, a, b, to, piece, pairs, batch, token, tokens, inverse, wide)
                    if mixed:
                        _pick(words, rows, own, piece, pairs, tokens, wide)
            else:
                a_steps = (peek(words, _A_BATCH), peek(words, _A_TOKEN), peek(words, _A_PIECE))
                b_steps = (peek(words, _B_BATCH), peek(words, _B_TOKEN), peek(words, _B_PIECE))
                _take(a, a_steps, rows[0], pairs, batch, token, tokens, 0, wide)
                _take(b, b_steps, rows[1], pairs, batch, token, tokens, inverse, wide)
            block = (batch, token, tokens, pairs, stream, rows, spare)
            _rotate(words, _Q_END, q, q_out, block, kind, reads, writes)
            if peek(words, _K_END) > 0:
                _rotate(words, _K_END, k, k_out, block, kind, reads, writes)
            row += tokens
        scratch[0] = 0  # numba frees an array behind the last line that names it
        if stream:
            settle()

    cache = os.environ.get("ROPE_XP_NUMBA_CACHE", "") not in ("", "0")
    signature = types.void(*[types.int64] * 10)
    made = numba.njit([signature], nogil=True, cache=cache)(kernel)
    made.disable_compile()
    return made  # type: ignore[no-any-return]  # numba has no types


@_jit
def _held(array):
    """Return where the elements of an object of numpy lie, which its first field says."""
    return peek(array + HEAD, 0) if array != 0 else 0


@_jit
def _take(start, steps, rows, pairs, batch, token, tokens, negative, wide):
    numba.literally(wide)
    width = 8 if wide else 4
    for i in range(tokens):
        source = start + batch * steps[0] + (token + i) * steps[1]
        for n in range(pairs):
            take(rows + (i * pairs + n) * width, source + n * steps[2], negative, wide)


@_jit
def _pieces(component, components, pairs):
    """Return stretches of frequencies, (component, first, last), and whether they are mixed.

    Then each component has one stretch, of all frequencies, of which it wants its own.
    """
    pieces = np.empty((max(components, 1), 3), np.int64)
    if components == 0:
        pieces[0, 0], pieces[0, 1], pieces[0, 2] = 0, 0, pairs
        return pieces, 0
    n = 0
    for i in range(pairs):
        c = name(component, i)
        if i > 0 and c == name(component, i - 1):
            continue
        if n == components:
            for c in range(components):
                pieces[c, 0], pieces[c, 1], pieces[c, 2] = c, 0, pairs
            return pieces, 1
        pieces[n, 0], pieces[n, 1] = c, i
        n += 1
    for i in range(n):
        # In whole steps: what lies behind a stretch is written again by the next.
        first, end = pieces[i, 1], pieces[i + 1, 1] if i + 1 < n else pairs
        pieces[i, 2] = min(first - (first - end) // FEW * FEW, pairs)
    return pieces[:n], 0


@_jit
def _look_up(words, a, b, rows, piece, pairs, batch, token, tokens, inverse, wide):
    """As rope_xp._rotation.angles.cos_sin; a digit of 0 changes nothing."""
    numba.literally(wide)
    low, middle, high = peek(words, _LOW), peek(words, _MIDDLE), peek(words, _HIGH)
    frequencies, counted = peek(words, _FREQUENCIES), peek(words, _COUNTED)
    parted = peek(words, _PARTED)
    c, start, stop = piece
    width = 8 if wide else 4
    size = 2 * pairs * width
    many, few = _steps(start, stop)
    a += batch * peek(words, _A_BATCH) + token * peek(words, _A_TOKEN) + c * peek(words, _A_PIECE)
    b += batch * peek(words, _B_BATCH) + token * peek(words, _B_TOKEN) + c * peek(words, _B_PIECE)
    a_step, b_step = peek(words, _A_TOKEN), peek(words, _B_TOKEN)
    for i in range(tokens):
        position = token + i if counted else peek(a + i * a_step, 0)
        count = abs(position)
        inside = -LIMIT < position < LIMIT
        lows = low + (count & (DIGIT - 1)) * size
        middles = middle + ((count >> DIGIT_BITS) & (DIGIT - 1)) * size
        highs = high + ((count >> (2 * DIGIT_BITS)) if inside else TOP_DIGIT) * size
        negative = np.int64(position < 0)
        if not parted:
            negative ^= inverse
        cos, sin = rows[0] + i * pairs * width, rows[1] + i * pairs * width
        for n in range(start, many, MANY):
            look_up(cos, sin, lows, middles, highs, pairs, n, negative, wide, MANY)
        for n in range(many, few, FEW):
            look_up(cos, sin, lows, middles, highs, pairs, n, negative, wide, FEW)
        for n in range(few, stop):
            look_up(cos, sin, lows, middles, highs, pairs, n, negative, wide, 1)
        if parted:
            fraction = b + i * b_step
            for n in range(start, many, MANY):
                turn_on(cos, sin, frequencies, fraction, n, inverse, wide, MANY)
            for n in range(many, few, FEW):
                turn_on(cos, sin, frequencies, fraction, n, inverse, wide, FEW)
            for n in range(few, stop):
                turn_on(cos, sin, frequencies, fraction, n, inverse, wide, 1)


@_jit
def _pick(words, rows, own, piece, pairs, tokens, wide):
    """Keep the angles of one component for the frequencies that read it."""
    numba.literally(wide)
    c, start, stop = piece
    _, few = _steps(start, stop)
    component = peek(words, _COMPONENT)
    for i in range(tokens):
        skip = i * pairs * (8 if wide else 4)
        cos, sin, own_cos, own_sin = rows[0] + skip, rows[1] + skip, own[0] + skip, own[1] + skip
        for n in range(start, few, FEW):
            pick(cos, sin, own_cos, own_sin, component, c, n, wide, FEW)
        for n in range(few, stop):
            pick(cos, sin, own_cos, own_sin, component, c, n, wide, 1)


@_jit
def _steps(start, stop):
    """Return where steps of MANY pairs end, and those of FEW."""
    return stop - (stop - start) % MANY, stop - (stop - start) % FEW


@_jit
def _rotate(words, end, x, y, block, kind, reads, writes):
    """Rotate all heads of a block of tokens."""
    numba.literally(kind), numba.literally(reads), numba.literally(writes)
    batch, token, tokens, pairs, stream, angles, spare = block
    size, width = ITEMSIZES[kind], WIDTHS[kind]
    before, behind = peek(words, _BEFORE), peek(words, _BEHIND)
    heads = peek(words, end)
    x_token, x_head = peek(words, end + 2), peek(words, end + 3)
    y_token, y_head = peek(words, end + 5), peek(words, end + 6)
    x, y = x + peek(words, end + 7), y + peek(words, end + 8)
    passes = before + behind > 0 and x != y
    x0 = x + batch * peek(words, end + 1) + token * x_token + before
    y0 = y + batch * peek(words, end + 4) + token * y_token + before
    row = 2 * pairs * size
    many, few = _steps(0, pairs)
    steps = peek(words, end + 4) | y_token | y_head | (pairs * size)
    stream = stream and (y0 | steps) % STREAM_ALIGNMENT == 0
    # In the order of memory: tokens outside where heads lie closer together than they.
    outside = abs(x_head) <= abs(x_token)
    for i in range(tokens if outside else heads):
        for j in range(heads if outside else tokens):
            t, h = (i, j) if outside else (j, i)
            source, target = x0 + t * x_token + h * x_head, y0 + t * y_token + h * y_head
            c, s = angles[0] + t * pairs * width, angles[1] + t * pairs * width
            if passes:
                copy(target - before, source - before, before)
                copy(target + row, source + row, behind)
            if source == target and reads != writes:
                # Results lie elsewhere than what they come from: read the row before it is gone.
                copy(spare, source, row)
                source = spare
            if stream and source != target:
                for n in range(0, many, MANY):
                    turn(source, target, c, s, pairs, n, x_token, kind, reads, writes, MANY, 1)
            else:
                for n in range(0, many, MANY):
                    turn(source, target, c, s, pairs, n, x_token, kind, reads, writes, MANY, 0)
            for n in range(many, few, FEW):
                turn(source, target, c, s, pairs, n, x_token, kind, reads, writes, FEW, 0)
            for n in range(few, pairs):
                turn(source, target, c, s, pairs, n, x_token, kind, reads, writes, 1, 0)
