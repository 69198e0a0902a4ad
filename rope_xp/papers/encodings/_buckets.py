"""Biases of T5 and TUPE, by buckets of distances. Public in :mod:`rope_xp.papers.encodings`."""

from typing import Any

import numpy as np

from rope_xp._arguments import parse
from rope_xp._core import numbers
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.papers import _heads
from rope_xp.papers.encodings import _operands


def t5_buckets(
    relative: Any, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Array:
    """Return T5's bucket of each relative position: narrow for near keys, wide for far ones.

    Raffel et al., arXiv 1910.10683, section 2.1, and their code. Edges of buckets are computed in
    integers here, so they do not depend on rounded logarithms.

    Parameters
    ----------
    relative : array or sequence, any shape
        Integers, in tokens: key position minus query position, as T5 counts.
    num_buckets : int, default 32
        Number of buckets, at least 4 if bidirectional, else 2.
    max_distance : int, default 128
        Distance in tokens from which on all keys share the last bucket.
    bidirectional : bool, default True
        Whether keys after the query have their own half of the buckets. If False, they share bucket
        0 with the query's own position.

    Returns
    -------
    array, shape of relative
        Integers below num_buckets, with relative's library and device; numpy for Python numbers.

    Examples
    --------
    >>> from rope_xp.papers import encodings
    >>> encodings.t5_buckets([-200, -20, -2, 0, 2, 20]).tolist()
    [15, 10, 2, 0, 18, 26]
    """
    edges, offset = _bucket_edges(num_buckets, max_distance, bidirectional)
    relative = np.asarray(relative) if parse.backend_of(relative) is None else relative
    backend = find.require_backend(relative, "relative")
    dtype = backend.dtype_name(relative)
    if dtype not in INTEGERS:
        raise TypeError(f"relative must hold integers (tokens); got {dtype}")
    return _assign_buckets(backend, backend.integers(relative), edges, offset)


def t5_bias(
    q: ArrayT,
    k: ArrayT,
    bias: ArrayT,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of T5: q times k, plus a learned bias for each bucket of distances.

    Parameters
    ----------
    q, k, positions, k_positions
        As for :func:`shaw`.
    bias : array, (num_buckets, heads)
        Learned: ``relative_attention_bias.weight`` of T5.
    max_distance, bidirectional
        As for :func:`t5_buckets`. T5's encoder is bidirectional, its decoder is not.
    scale : float, default 1.0
        Factor on q . k, not on bias; T5 has 1.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q, bias = np.zeros((3, 1, 2)), np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> encodings.t5_bias(q, q, bias, max_distance=2).tolist()
    [[[0.0, 3.0, 3.0], [1.0, 0.0, 3.0], [1.0, 1.0, 0.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    added = _bias(operands, bias, max_distance, bidirectional)
    return operands.finish(q, operands.content(), added)


def tupe(
    q: ArrayT,
    k: ArrayT,
    position_q: ArrayT,
    position_k: ArrayT,
    bias: ArrayT | None = None,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of TUPE, which projects positions by matrices of their own.

    ``q_m . k_n + (U_q p_m) . (U_k p_n) + b(m - n)``: Ke et al., arXiv 2006.15595, section 3.1. The
    caller resets the terms of the [CLS] token (section 3.2).

    Parameters
    ----------
    q, k, positions, k_positions
        As for :func:`shaw`; positions affect only b.
    position_q, position_k : array, (tokens, heads, head_dim) or (batch..., tokens, heads, head_dim)
        U_q p and U_k p: the absolute positions of the tokens of q and of k, embedded and projected
        by matrices of their own. Both have the heads of q.
    bias, max_distance, bidirectional
        As for :func:`t5_bias`. No bias: TUPE-A.
    scale : float, default 1.0
        Both products are multiplied by it, b is not; the paper has ``(2 * head_dim) ** -0.5``.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q, places = np.zeros((2, 1, 1)), np.array([[[1.0]], [[2.0]]])
    >>> encodings.tupe(q, q, places, places).tolist()
    [[[1.0, 2.0], [2.0, 4.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    axes = "(tokens, heads, head_dim), with the batch axes of q or without"
    embedded = []
    for name, value in (("position_q", position_q), ("position_k", position_k)):
        shape = tuple((operands.q if name == "position_q" else operands.k).shape)
        embedded.append(operands.parameter(name, value, axes, shape[-3:], shape))
    added = None if bias is None else _bias(operands, bias, max_distance, bidirectional)
    products = operands.content() + _heads.multiply_heads(operands.xp, *embedded)
    return operands.finish(q, products, added)


def _bias(operands: _operands.Operands, bias: Any, max_distance: int, bidirectional: bool) -> Array:
    """Return b of each query and key, (..., heads, q tokens, k tokens)."""
    b = operands.parameter("bias", bias, "(num_buckets, heads)", (None, operands.head_shape[0]))
    edges, offset = _bucket_edges(b.shape[0], max_distance, bidirectional)
    # T5 counts key less query, RoFormer query less key.
    bucket = _assign_buckets(operands.backend, -operands.distances, edges, offset)
    return operands.xp.moveaxis(operands.take(b, bucket), -1, -3)


def _bucket_edges(
    num_buckets: int, max_distance: int, bidirectional: bool
) -> tuple[list[int], int]:
    """Return the least distance of each bucket but the first, and the first for later keys or 0."""
    numbers.check_positive_int("num_buckets", num_buckets)
    numbers.check_positive_int("max_distance", max_distance)
    buckets = num_buckets // 2 if bidirectional else num_buckets
    if buckets < 2:
        least = "4 with bidirectional" if bidirectional else "2"
        raise RopeError(f"num_buckets must be >= {least}, for near and far; got {num_buckets}")
    e = buckets // 2
    if not e < max_distance < 2**31:
        raise RopeError(
            f"max_distance must exceed the {e} distances with their own bucket of num_buckets = "
            f"{num_buckets}, and be below 2**31; got {max_distance}"
        )
    # Half of the buckets hold one distance each, 0 to e - 1. Bucket e + i begins where
    # log(n / e) / log(max_distance / e) * steps reaches i, that is where
    # n**steps * e**i >= max_distance**i * e**steps.
    edges, steps = [*range(1, e + 1)], buckets - e
    for i in range(1, steps):
        n = round(e * (max_distance / e) ** (i / steps))  # the edge or the distance before it
        edges.append(n + (n**steps * e**i < max_distance**i * e**steps))
    return edges, buckets if bidirectional else 0


def _assign_buckets(backend: Backend, relative: Array, edges: list[int], offset: int) -> Array:
    """Return buckets; those of keys after the query begin at ``offset``, 0 if they have none."""
    xp = backend.xp
    # Clipped first: the lowest integer has no negative.
    relative = xp.clip(relative, -edges[-1], edges[-1])
    distance = xp.abs(relative) if offset else xp.clip(-relative, 0, None)
    starts = xp.asarray(edges, dtype=distance.dtype, device=backend.device(distance))
    flat = xp.searchsorted(starts, xp.reshape(distance, (-1,)), side="right")
    bucket = xp.reshape(flat, tuple(relative.shape))
    return bucket + xp.astype(relative > 0, bucket.dtype) * offset if offset else bucket
