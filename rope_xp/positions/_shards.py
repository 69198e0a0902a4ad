"""Split the tokens of a sequence over devices, for context parallelism."""

from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp.positions import _values as values
from rope_xp.positions._packed import count_tokens, parse_ends


def zigzag(
    tokens: int | None = None,
    shards: int = 0,
    *,
    cu_seqlens: Any = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the tokens of each device, which balance the load of causal attention.

    Each sequence is cut into ``2 * shards`` chunks; device i holds chunk i from the front and chunk
    i from the back, for packed sequences one sequence after the other.

    Parameters
    ----------
    tokens : int, optional
        Number of tokens, a multiple of ``2 * shards``. With cu_seqlens it is required only under a
        compiler, which has no values.
    shards : int
        Number of devices.
    cu_seqlens : array or sequence, (sequences + 1,), optional
        Integers, as in :func:`packed`. Each sequence is padded to a multiple of ``2 * shards``.
    xp, device : optional
        Library and device of the result; numpy by default, or those of cu_seqlens if it is on a
        device.

    Returns
    -------
    array, (shards, tokens / shards)
        int64, in jax int32: row i holds the tokens of device i, in its order. Without cu_seqlens
        these are also their positions; with it, positions are ``packed(cu_seqlens)[row]``.

    Raises
    ------
    RopeError
        If a number is not positive, or tokens do not divide evenly; for cu_seqlens as in
        :func:`packed`.

    Notes
    -----
    The split of context parallelism in Megatron, and for packed sequences ("thd") in Transformer
    Engine.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.zigzag(8, 2).tolist()
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> tokens = positions.zigzag(cu_seqlens=[0, 4, 12], shards=2)
    >>> tokens.tolist()
    [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    >>> positions.packed([0, 4, 12])[tokens[0]].tolist()
    [0, 3, 0, 1, 6, 7]
    """
    shards = values.check_count("shards", shards)
    if cu_seqlens is None:
        if tokens is None:
            raise RopeError("zigzag needs tokens, the number of tokens, or cu_seqlens")
        cu_seqlens = [0, values.check_count("tokens", tokens)]
    backend, ends = parse_ends(cu_seqlens)
    total = count_tokens(ends) if tokens is None else values.check_count("tokens", tokens, 0)
    on_host = isinstance(ends, np.ndarray)
    if total % (2 * shards) or (on_host and total != ends[-1]):
        raise RopeError(
            f"tokens = {total} must be a multiple of 2 * shards = {2 * shards}, and must "
            "be cu_seqlens[-1]"
        )
    if on_host and (np.diff(ends) % (2 * shards)).any():
        raise RopeError(
            f"each sequence of cu_seqlens must be a multiple of 2 * shards = {2 * shards} long; "
            f"pad it; got lengths {np.diff(ends)}"
        )
    array_xp, array_device = backend.xp, backend.device(ends)
    shard = array_xp.arange(shards, dtype=ends.dtype, device=array_device)[:, None]
    slot = array_xp.arange(total // shards, dtype=ends.dtype, device=array_device)
    # Every device holds the same share of each sequence.
    sequence = array_xp.searchsorted(ends[1:] // shards, slot, side="right")
    start = array_xp.take(ends, sequence, axis=0)
    chunk = (array_xp.take(ends, sequence + 1, axis=0) - start) // (2 * shards)
    within = slot - start // shards
    front = (start + within)[None, :] + shard * chunk[None, :]
    back = front + ((2 * shards - 2) * chunk)[None, :] - 2 * shard * chunk[None, :]
    tokens_of_shards = array_xp.where((within < chunk)[None, :], front, back)
    if on_host:
        return values.to_library(tokens_of_shards.astype(np.int64), xp, device)
    if xp is not None or device is not None:
        raise RopeError(
            "cu_seqlens is on a device, where the result is too; leave out xp and device"
        )
    return tokens_of_shards
