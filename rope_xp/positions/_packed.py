"""Packed sequences, and new tokens that follow cached ones."""

from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp.positions import _values as values


def packed(cu_seqlens: Any, *, total: int | None = None) -> Array:
    """Return positions of packed sequences, each counted from 0.

    Parameters
    ----------
    cu_seqlens : array or sequence, (sequences + 1,)
        Integers: cumulative lengths in tokens from 0, as in flash-attention.
    total : int, optional
        Number of tokens, ``cu_seqlens[-1]`` or more. Required under a compiler, which has no
        values; on a GPU it avoids a synchronisation. Tokens beyond the last sequence are counted
        from 0 too.

    Returns
    -------
    array, (total,)
        In the library and on the device of cu_seqlens, signed with at least 32 bits; numpy for
        Python numbers.

    Raises
    ------
    RopeError
        If cu_seqlens is not one-dimensional and integer, or total is missing under a compiler; if
        cu_seqlens is a numpy array and does not start with 0, decreases, or exceeds total.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.packed([0, 3, 7]).tolist()
    [0, 1, 2, 0, 1, 2, 3]
    """
    backend, ends = parse_ends(cu_seqlens)
    total = count_tokens(ends) if total is None else values.check_count("total", total, 0)
    if isinstance(ends, np.ndarray) and total < ends[-1]:
        raise RopeError(f"total = {total} is less than cu_seqlens[-1] = {ends[-1]}")
    xp = backend.xp
    tokens = xp.arange(total, dtype=ends.dtype, device=backend.device(ends))
    sequence = xp.searchsorted(ends[1:], tokens, side="right")
    return tokens - xp.take(ends, sequence, axis=0)


def parse_ends(cu_seqlens: Any) -> tuple[Backend, Array]:
    """Return the ends of packed sequences; values in host memory are checked."""
    backend, ends = values.to_integers("cu_seqlens", cu_seqlens)
    if ends.shape[0] == 0:
        raise RopeError("cu_seqlens is empty; it starts with 0")
    if isinstance(ends, np.ndarray) and (ends[0] != 0 or (ends[1:] < ends[:-1]).any()):
        raise RopeError(f"cu_seqlens must start with 0 and not decrease; got {ends}")
    return backend, ends


def count_tokens(ends: Array) -> int:
    """Return the number of tokens of packed sequences."""
    try:
        return int(ends[-1])
    except (TypeError, ValueError) as error:  # jax and ndonnx, while tracing
        msg = f"cu_seqlens has no values yet; give the number of tokens as total= ({error})"
        raise RopeError(msg.partition("\n")[0]) from error


def offsets(lengths: Any, new_tokens: int = 1) -> Array:
    """Return positions of new tokens, which follow the cached tokens of each sequence in a batch.

    Parameters
    ----------
    lengths : array or sequence, (batch,)
        Integers: number of cached tokens of each sequence.
    new_tokens : int, default 1
        Number of new tokens of each sequence.

    Returns
    -------
    array, (batch, new_tokens)
        Of library, device and dtype as in :func:`packed`.

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
    backend, lengths = values.to_integers("lengths", lengths)
    new_tokens = values.check_count("new_tokens", new_tokens)
    device = backend.device(lengths)
    steps = backend.xp.arange(new_tokens, dtype=lengths.dtype, device=device)
    return lengths[:, None] + steps[None, :]
