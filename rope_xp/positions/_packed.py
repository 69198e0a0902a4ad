"""Sequences that lie one behind the other, and tokens that follow cached ones."""

from typing import Any

import numpy as np

from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp.positions import _values as values


def packed(cu_seqlens: Any, *, total: int | None = None) -> Array:
    """Return positions of sequences that lie one after the other, each counted from 0.

    Parameters
    ----------
    cu_seqlens : array or sequence, (sequences + 1,)
        Integers, in tokens: 0, then where each sequence ends, as flash-attention's functions for
        sequences of different lengths take them.
    total : int, optional
        Tokens in all, ``cu_seqlens[-1]`` or more. Needed under a compiler, which does not know
        values; on a GPU it saves waiting for one. Tokens beyond the last sequence are counted from
        0 too.

    Returns
    -------
    array, (total,)
        Of the library and device of cu_seqlens, signed and of 32 bits at least; numpy for Python
        numbers.

    Raises
    ------
    RopeError
        If cu_seqlens is not one-dimensional and integer, or total is missing under a compiler; if
        cu_seqlens is in numpy and does not start with 0, decreases, or exceeds total.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.packed([0, 3, 7]).tolist()
    [0, 1, 2, 0, 1, 2, 3]
    """
    backend, ends = ends_of(cu_seqlens)
    known = isinstance(ends, np.ndarray)
    total = total_of(ends) if total is None else values.count("total", total, 0)
    if known and total < ends[-1]:
        raise RopeError(f"total = {total} is less than cu_seqlens[-1] = {ends[-1]}")
    xp = backend.xp
    tokens = xp.arange(total, dtype=ends.dtype, device=backend.device(ends))
    sequence = xp.searchsorted(ends[1:], tokens, side="right")
    return tokens - xp.take(ends, sequence, axis=0)


def ends_of(cu_seqlens: Any) -> tuple[Backend, Array]:
    """Return where packed sequences end, checked as far as it can be read."""
    backend, ends = values.integers("cu_seqlens", cu_seqlens)
    if ends.shape[0] == 0:
        raise RopeError("cu_seqlens is empty; it starts with 0")
    if isinstance(ends, np.ndarray) and (ends[0] != 0 or (ends[1:] < ends[:-1]).any()):
        raise RopeError(f"cu_seqlens must start with 0 and not decrease; got {ends}")
    return backend, ends


def total_of(ends: Array) -> int:
    """Return how many tokens packed sequences have, where that can be read."""
    try:
        return int(ends[-1])
    except (TypeError, ValueError) as error:  # jax's and ndonnx's, of a value that is not there yet
        msg = f"cu_seqlens has no values yet; give the number of tokens as total= ({error})"
        raise RopeError(msg.partition("\n")[0]) from error


def offsets(lengths: Any, new_tokens: int = 1) -> Array:
    """Return positions of new tokens behind those that each sequence of a batch has already.

    Parameters
    ----------
    lengths : array or sequence, (batch,)
        Integers: tokens that are in the cache of each sequence.
    new_tokens : int, default 1
        Tokens to come, alike for all sequences.

    Returns
    -------
    array, (batch, new_tokens)
        Of the library and device of lengths, signed and of 32 bits at least; numpy for Python
        numbers.

    Raises
    ------
    RopeError
        If lengths is not one-dimensional and integer, or new_tokens is not positive.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.offsets([17, 4], new_tokens=2).tolist()
    [[17, 18], [4, 5]]
    """
    backend, lengths = values.integers("lengths", lengths)
    new_tokens = values.count("new_tokens", new_tokens)
    device = backend.device(lengths)
    steps = backend.xp.arange(new_tokens, dtype=lengths.dtype, device=device)
    return lengths[:, None] + steps[None, :]
