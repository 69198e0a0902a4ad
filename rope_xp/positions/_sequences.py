"""Positions of packed sequences, of tokens after cached ones, and of tokens split over devices."""

from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp._dispatch.backend import Backend
from rope_xp.positions import _values as values


def packed(cu_seqlens: Any, *, total: int | None = None) -> Array:
    """Return positions of packed sequences, each counted from 0.

    Parameters
    ----------
    cu_seqlens : array or sequence, (sequences + 1,)
        Integers: cumulative lengths in tokens from 0, as in flash-attention. In host memory they
        are checked: they must not decrease or exceed total.
    total : int, optional
        Number of tokens, ``cu_seqlens[-1]`` or more; the rest is also counted from 0. Required
        under a compiler, which has no values; on a GPU it avoids a synchronisation.

    Returns
    -------
    array, (total,)
        With the library and device of cu_seqlens (numpy for Python numbers), as signed integers of
        at least 32 bits.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.packed([0, 3, 7]).tolist()
    [0, 1, 2, 0, 1, 2, 3]
    """
    backend, ends = parse_ends(cu_seqlens)
    total = _count_tokens(ends) if total is None else values.check_count("total", total, 0)
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
        raise RopeError("cu_seqlens is empty; it must start with 0")
    if isinstance(ends, np.ndarray) and (ends[0] != 0 or (ends[1:] < ends[:-1]).any()):
        raise RopeError(f"cu_seqlens must start with 0 and not decrease; got {ends}")
    return backend, ends


def _count_tokens(ends: Array) -> int:
    try:
        return int(ends[-1])
    except (TypeError, ValueError) as error:  # jax and ndonnx, while tracing
        msg = f"cu_seqlens has no values yet; pass the number of tokens as total= ({error})"
        raise RopeError(msg.partition("\n")[0]) from error


def from_mask(mask: Any) -> Array:
    """Return positions of padded sequences, each counted from its first token.

    They are those of ``generate`` in transformers, for padding on the left or the right.

    Parameters
    ----------
    mask : array or sequence, (tokens,) or (batch, tokens)
        Booleans or integers, such as ``attention_mask``: 0 for padding and 1 for tokens, which is
        checked in host memory. For numbered sequences see :func:`from_segments`.

    Returns
    -------
    array, like mask
        With the library, device and dtype of :func:`packed`; padding has position 0. The next token
        of each sequence has position ``mask.sum(-1)``.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.from_mask([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).tolist()
    [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    backend, mask = _read_rows("mask", mask, "booleans or integers", 1)
    xp = backend.xp
    is_token = mask != 0
    counts = _count(xp, is_token, mask.dtype)
    return xp.where(is_token, counts - 1, xp.zeros_like(mask))


def from_segments(segments: Any) -> Array:
    """Return positions of sequences that are packed in rows, each counted from 0.

    Parameters
    ----------
    segments : array or sequence, (tokens,) or (batch, tokens)
        Integers, as collators number sequences in a mask: 0 for padding, and another number for
        each run of tokens that is a sequence, such as 1 1 2 2 2 0.

    Returns
    -------
    array, like segments
        With the library, device and dtype of :func:`packed`; padding has position 0.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.from_segments([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2]]).tolist()
    [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1]]
    """
    backend, segments = _read_rows("segments", segments, "integers, a number for each sequence")
    xp, tokens = backend.xp, segments.shape[-1]
    index = xp.arange(tokens, device=backend.device(segments))
    index = xp.broadcast_to(index, segments.shape)
    changes = segments[..., 1:] != segments[..., :-1]
    always = xp.zeros_like(segments[..., :1]) == 0
    starts = xp.concat([always, changes], axis=-1)
    # Sorted, the starts of runs stand at their numbers.
    ordered = xp.sort(xp.where(starts, index, tokens + xp.zeros_like(index)), axis=-1)
    first = xp.take_along_axis(ordered, _count(xp, starts, index.dtype) - 1, axis=-1)
    counts = xp.astype(index - first, segments.dtype)
    return xp.where(segments != 0, counts, xp.zeros_like(segments))


def _read_rows(name: str, rows: Any, kind: str, most: int | None = None) -> tuple[Backend, Array]:
    """Return rows of tokens; values in host memory are checked."""
    options: dict[str, Any] = {"axes": (1, 2), "dtypes": ("int", "uint", "bool")}
    expected = f"{kind}, (batch, tokens), 0 for padding"
    backend, rows = values.to_integers(name, rows, expected, **options)
    if backend.is_sharded(rows, rows.ndim - 1):
        raise RopeError(
            f"{name} must not be sharded along tokens, on a mesh with explicit axes; shard the "
            "batch alone, by jax.sharding.reshard"
        )
    host = None if backend.is_compiling() else backend.host_view(rows)
    if host is not None and host.size and (host.min() < 0 or host.max() > (most or np.inf)):
        bound = "0 for padding and 1 for tokens" if most else "0 for padding, or positive"
        hint = "; from_segments takes the numbers of sequences" if host.max() > 1 else ""
        raise RopeError(f"{name} must be {bound}; got {host.min()} to {host.max()}{hint}")
    return backend, rows


def _count(xp: Namespace, flags: Array, dtype: Any) -> Array:
    """Return how many flags are set up to each token."""
    # torch.compile warns of cumulative_sum, the standard's name, in array_api_compat.
    cumsum = getattr(xp, "cumsum", None) or xp.cumulative_sum
    return xp.astype(cumsum(xp.astype(flags, dtype), axis=-1), dtype)


def offsets(lengths: Any, new_tokens: int = 1) -> Array:
    """Return positions of new tokens after the cached tokens of each sequence in a batch.

    Parameters
    ----------
    lengths : array or sequence, (batch,)
        Integers: number of cached tokens of each sequence.
    new_tokens : int, default 1
        Number of new tokens of each sequence.

    Returns
    -------
    array, (batch, new_tokens)
        With the library, device and dtype of :func:`packed`.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.offsets([17, 4], new_tokens=2).tolist()
    [[17, 18], [4, 5]]
    """
    backend, lengths = values.to_integers("lengths", lengths)
    new_tokens = values.check_count("new_tokens", new_tokens)
    options = {"dtype": lengths.dtype, "device": backend.device(lengths)}
    return lengths[:, None] + backend.xp.arange(new_tokens, **options)[None, :]


def zigzag(
    tokens: int | None = None,
    shards: int = 0,
    *,
    cu_seqlens: Any = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the tokens of each device, split to balance the load of causal attention.

    Each sequence is cut into ``2 * shards`` chunks. Device i holds chunk i from the front and chunk
    i from the back, with packed sequences one after the other: as in Megatron's context
    parallelism, and for packed sequences ("thd") in Transformer Engine.

    Parameters
    ----------
    tokens : int, optional
        Number of tokens, a multiple of ``2 * shards``. With cu_seqlens: total of :func:`packed`.
    shards : int
        Number of devices.
    cu_seqlens : array or sequence, (sequences + 1,), optional
        As in :func:`packed`. Each sequence must be padded to a multiple of ``2 * shards``.
    xp, device : optional
        As for :func:`video`. Not allowed with cu_seqlens on a device, which the result shares.

    Returns
    -------
    array, (shards, tokens / shards)
        Row i holds the indices of the tokens of device i, in order. They are also the positions;
        with cu_seqlens these are ``packed(cu_seqlens)[row]``.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.zigzag(8, 2).tolist()
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> positions.zigzag(cu_seqlens=[0, 4, 12], shards=2).tolist()
    [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    """
    shards = values.check_count("shards", shards)
    chunks = 2 * shards
    if cu_seqlens is None:
        if tokens is None:
            raise RopeError("zigzag needs tokens, the number of tokens, or cu_seqlens")
        cu_seqlens = [0, values.check_count("tokens", tokens)]
    backend, ends = parse_ends(cu_seqlens)
    total = _count_tokens(ends) if tokens is None else values.check_count("tokens", tokens, 0)
    on_host = isinstance(ends, np.ndarray)
    if total % chunks or (on_host and total != ends[-1]):
        msg = f"tokens = {total} must be a multiple of 2 * shards = {chunks}"
        msg += " and must be cu_seqlens[-1]"
        raise RopeError(msg)
    if on_host and (np.diff(ends) % chunks).any():
        raise RopeError(
            f"pad each sequence of cu_seqlens to a multiple of 2 * shards = {chunks} tokens; "
            f"got lengths {np.diff(ends)}"
        )
    if not on_host and (xp is not None or device is not None):
        raise RopeError("cu_seqlens is on a device, which the result shares; omit xp and device")
    array_xp, options = backend.xp, {"dtype": ends.dtype, "device": backend.device(ends)}
    shard = array_xp.arange(shards, **options)[:, None]
    slot = array_xp.arange(total // shards, **options)
    # Every device holds the same share of each sequence.
    sequence = array_xp.searchsorted(ends[1:] // shards, slot, side="right")
    start = array_xp.take(ends, sequence, axis=0)
    length = (array_xp.take(ends, sequence + 1, axis=0) - start) // chunks
    within = slot - start // shards
    # The second chunk of a device lies after the chunks - 2 - 2 * shard between its two.
    skipped = array_xp.where((within < length)[None, :], shard, chunks - 2 - shard)
    tokens_of_shards = (start + within)[None, :] + skipped * length[None, :]
    if on_host:
        return values.to_library(tokens_of_shards.astype(np.int64), xp, device)
    return tokens_of_shards
