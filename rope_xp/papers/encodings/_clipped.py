"""Encodings by tables of clipped distances. Public in :mod:`rope_xp.papers.encodings`."""

from typing import Any

from rope_xp._core.typing import ArrayT
from rope_xp.papers import _heads
from rope_xp.papers.encodings import _operands

_SHARED_AXES = "(2 * clip + 1, head_dim)"


def shaw(
    q: ArrayT,
    k: ArrayT,
    relative_keys: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of Shaw et al., who add a learned vector for each distance to the keys.

    ``q_m . (k_n + p(r))``, with r the distance m - n, clipped: arXiv 1803.02155, eq. 4. They count
    n - m, so the rows of their table are in reverse order. For RoFormer's eq. 5, pass W_k p.

    Parameters
    ----------
    q, k : array, (batch..., tokens, heads, head_dim)
        Queries and keys; the heads of q may be a multiple of those of k.
    relative_keys : array, (2 * clip + 1, head_dim)
        p, for all heads: row ``clip + r`` is added to keys that lie r tokens before the query.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        Integers, in tokens. Default: 0, 1, ...; for k those of q.
    scale : float, default 1.0
        Factor on the result; the paper has ``head_dim ** -0.5``.

    Returns
    -------
    array, (batch..., heads, q tokens, k tokens)

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q, k = np.ones((3, 1, 1)), np.zeros((3, 1, 1))
    >>> encodings.shaw(q, k, np.array([[-1.0], [0.0], [1.0]])).tolist()
    [[[0.0, -1.0, -1.0], [1.0, 0.0, -1.0], [1.0, 1.0, 0.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    shape = (None, operands.head_shape[1])
    rows = operands.take_clipped("relative_keys", relative_keys, _SHARED_AXES, shape)
    return operands.finish(q, operands.content() + operands.multiply_rows(operands.q, rows))


def shaw_values(
    weights: ArrayT,
    v: ArrayT,
    relative_values: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
) -> ArrayT:
    """Return the attention output of Shaw et al.: the sum over n of ``a_mn (v_n + p(r))``.

    Parameters
    ----------
    weights : array, (batch..., heads, q tokens, k tokens)
        a, after softmax.
    v : array, (batch..., k tokens, heads, head_dim)
        Values; the heads of weights may be a multiple of its heads.
    relative_values : array, (2 * clip + 1, head_dim)
        p, for all heads.
    positions, k_positions
        As for :func:`shaw`.

    Returns
    -------
    array, (batch..., q tokens, heads, head_dim)

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> weights, v = np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.zeros((2, 1, 1))
    >>> encodings.shaw_values(weights, v, np.array([[-1.0], [0.0], [3.0]])).tolist()
    [[[0.0]], [[1.5]]]
    """
    operands = _operands.check_operands(positions, k_positions, weights=weights, v=v)
    xp, shape = operands.xp, (None, operands.head_shape[1])
    rows = operands.take_clipped("relative_values", relative_values, _SHARED_AXES, shape)
    content = xp.matmul(operands.q, _heads.swap_tokens_and_heads(xp, operands.k))
    relative = xp.matmul(_heads.swap_tokens_and_heads(xp, operands.q), rows)
    return _heads.cast_like(xp, _heads.swap_tokens_and_heads(xp, content) + relative, v)


def deberta(
    q: ArrayT,
    k: ArrayT,
    relative_q: ArrayT,
    relative_k: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of DeBERTa, with terms from content to position and back.

    ``q_m . k_n + q_m . k(d) + q(d) . k_n``, with d the entry of m - n. He et al., arXiv 2006.03654,
    eq. 4, print n - m for relative_q; their code, transformers and RoFormer's eq. 10 read m - n.

    Parameters
    ----------
    q, k, positions, k_positions
        As for :func:`shaw`.
    relative_q, relative_k : array, (2 * clip, heads, head_dim)
        Projected embeddings of relative positions. Entry ``clip + m - n`` is for distance m - n,
        from -clip to clip - 1. Larger distances use the first or the last entry.
    scale : float, default 1.0
        Factor on the result; the paper has ``(3 * head_dim) ** -0.5``.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q, k, table = np.ones((3, 1, 1)), np.zeros((3, 1, 1)), np.array([[[-1.0]], [[0.0]]])
    >>> encodings.deberta(q, k, table, table).tolist()
    [[[0.0, -1.0, -1.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    xp, axes = operands.xp, "(2 * clip, heads, head_dim)"
    shape = (None, *operands.head_shape)
    to_keys = operands.take_clipped("relative_q", relative_q, axes, shape, symmetric=False)
    shape = tuple(relative_q.shape)  # type: ignore[attr-defined]  # an array
    to_queries = operands.take_clipped("relative_k", relative_k, axes, shape, symmetric=False)
    by_key = xp.sum(operands.k[..., None, :, :, :] * to_keys, axis=-1)
    by_query = xp.sum(operands.q[..., :, None, :, :] * to_queries, axis=-1)
    return operands.finish(q, operands.content() + xp.moveaxis(by_query + by_key, -1, -3))


def multiplicative(
    q: ArrayT,
    k: ArrayT,
    factors: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return scores multiplied by a learned number for each distance.

    ``(q_m . k_n) a(m - n)``: Huang et al., arXiv 2009.13658, method 2; with equal factors for r and
    -r, method 1.

    Parameters
    ----------
    q, k, positions, k_positions, scale
        As for :func:`shaw`.
    factors : array, (2 * clip + 1,) or (2 * clip + 1, heads)
        a: entry ``clip + r`` is for keys r tokens before the query, r clipped.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q = np.ones((3, 1, 1))
    >>> encodings.multiplicative(q, q, np.array([0.0, 1.0, 0.5])).tolist()
    [[[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.5, 0.5, 1.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    shapes = ((None,), (None, operands.head_shape[0]))
    axes = "(2 * clip + 1,) or (2 * clip + 1, heads)"
    entries = operands.take_clipped("factors", factors, axes, *shapes)
    if entries.ndim == operands.distances.ndim:  # of all heads
        entries = entries[..., None]
    return operands.finish(q, operands.content() * operands.xp.moveaxis(entries, -1, -3))
