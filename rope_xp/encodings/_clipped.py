"""Encodings that are tables of clipped distances. Public in :mod:`rope_xp.encodings`."""

from typing import Any

from rope_xp import _heads
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import ArrayT
from rope_xp.encodings import _pair


def shaw(
    q: ArrayT,
    k: ArrayT,
    relative_keys: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of Shaw et al.: ``q_m . (k_n + p(r))``, r the distance m - n, clipped.

    Parameters
    ----------
    q, k : array, (batch..., tokens, heads, head_dim)
        Queries and keys; the heads of q may be a multiple of those of k.
    relative_keys : array, (2 * clip + 1, head_dim)
        p, for all heads: row ``clip + r`` is added to keys that lie r tokens before the query.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        Integers, in tokens. Default: 0, 1, ...; for k those of q.
    scale : float, default 1.0
        The result is multiplied by it; the paper has ``head_dim ** -0.5``.

    Returns
    -------
    array, (batch..., heads, q tokens, k tokens)
        Like q. Computed in float32, in float64 for float64 q.

    Raises
    ------
    RopeError
        If shapes do not fit, or positions are out of range.
    TypeError
        If an array is of another library, or of a dtype that does not fit.

    Notes
    -----
    RoFormer, arXiv 2104.09864, eq. 5; Shaw et al., "Self-Attention with Relative Position
    Representations", arXiv 1803.02155, eq. 4. Shaw et al. count key less query: their table is
    this one from its last row to its first. RoFormer's eq. 5 projects p together with the key;
    pass W_k p for that.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import encodings
    >>> q, k = np.ones((3, 1, 1)), np.zeros((3, 1, 1))
    >>> encodings.shaw(q, k, np.array([[-1.0], [0.0], [1.0]])).tolist()
    [[[0.0, -1.0, -1.0], [1.0, 0.0, -1.0], [1.0, 1.0, 0.0]]]
    """
    scale = _heads.check_scale(scale)
    pair = _pair.pair(q, k, positions, k_positions)
    rows = _shared(pair, "relative_keys", relative_keys)
    scores = pair.content() + pair.with_rows(pair.q, rows)
    return pair.result(scores * scale)  # type: ignore[no-any-return]  # same kind as q


def shaw_values(
    weights: ArrayT,
    v: ArrayT,
    relative_values: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
) -> ArrayT:
    """Return what attention of Shaw et al. reads: the sum over n of ``a_mn (v_n + p(r))``.

    Parameters
    ----------
    weights : array, (batch..., heads, q tokens, k tokens)
        a, after softmax.
    v : array, (batch..., k tokens, heads, head_dim)
        Values; the heads of weights may be a multiple of theirs.
    relative_values : array, (2 * clip + 1, head_dim)
        p, for all heads, as for :func:`shaw`.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        Integers, in tokens. Default: 0, 1, ...; for v those of the queries.

    Returns
    -------
    array, (batch..., q tokens, heads, head_dim)
        Like v. Computed in float32, in float64 for float64 v.

    Raises
    ------
    RopeError, TypeError
        As :func:`shaw`.

    Notes
    -----
    RoFormer, arXiv 2104.09864, eq. 5; Shaw et al., arXiv 1803.02155, eq. 3.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import encodings
    >>> weights, v = np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.zeros((2, 1, 1))
    >>> encodings.shaw_values(weights, v, np.array([[-1.0], [0.0], [3.0]])).tolist()
    [[[0.0]], [[1.5]]]
    """
    pair = _pair.weighted(weights, v, positions, k_positions)
    xp = pair.xp
    rows = _shared(pair, "relative_values", relative_values)
    read = _heads.swap_tokens_and_heads(
        xp, xp.matmul(pair.q, _heads.swap_tokens_and_heads(xp, pair.k))
    )
    relative = xp.matmul(_heads.swap_tokens_and_heads(xp, pair.q), rows)
    return pair.result(read + relative)  # type: ignore[no-any-return]  # same kind as v


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
    """Return the scores of DeBERTa: ``q_m . k_n + q_m . k(d) + q(d) . k_n``, d the entry of m - n.

    Parameters
    ----------
    q, k : array, (batch..., tokens, heads, head_dim)
        Queries and keys of content; the heads of q may be a multiple of those of k.
    relative_q, relative_k : array, (2 * clip, heads, head_dim)
        Projected embeddings of relative positions. Entry ``clip + m - n`` is for distance m - n,
        from -clip to clip - 1; what lies beyond has the first and the last.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        Integers, in tokens. Default: 0, 1, ...; for k those of q.
    scale : float, default 1.0
        The result is multiplied by it; the paper has ``(3 * head_dim) ** -0.5``.

    Returns
    -------
    array, (batch..., heads, q tokens, k tokens)
        Like q. Computed in float32, in float64 for float64 q.

    Raises
    ------
    RopeError, TypeError
        As :func:`shaw`.

    Notes
    -----
    RoFormer, arXiv 2104.09864, eq. 10; He et al., "DeBERTa", arXiv 2006.03654, eq. 4. He et al.
    print n - m for relative_q; their code and that of transformers read the entry of m - n for
    both, as RoFormer has it. The released weights are of that code.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import encodings
    >>> q, k = np.ones((3, 1, 1)), np.zeros((3, 1, 1))
    >>> table = np.array([[[-1.0]], [[0.0]]])
    >>> encodings.deberta(q, k, table, table).tolist()
    [[[0.0, -1.0, -1.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]]
    """
    scale = _heads.check_scale(scale)
    pair = _pair.pair(q, k, positions, k_positions)
    xp, shape = pair.xp, (None, pair.heads, pair.head_dim)
    axes = "(2 * clip, heads, head_dim)"
    to_keys = pair.parameter("relative_q", relative_q, axes, shape)
    to_queries = pair.parameter("relative_k", relative_k, axes, shape)
    if to_keys.shape != to_queries.shape:
        msg = (
            f"relative_q has {to_keys.shape[0]} entries and relative_k {to_queries.shape[0]}; both "
            "must have one for each distance"
        )
        raise RopeError(msg)
    clip = _pair.check_rows("relative_q", to_keys.shape[0], odd=False)
    entry = pair.clipped(clip, clip - 1)
    by_query = pair.q[..., :, None, :, :] * pair.rows(to_queries, entry)
    by_key = pair.k[..., None, :, :, :] * pair.rows(to_keys, entry)
    relative = xp.moveaxis(xp.sum(by_query, axis=-1) + xp.sum(by_key, axis=-1), -1, -3)
    return pair.result((pair.content() + relative) * scale)  # type: ignore[no-any-return]  # as q


def multiplicative(
    q: ArrayT,
    k: ArrayT,
    factors: ArrayT,
    *,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return scores that a learned number for each distance multiplies: ``(q_m . k_n) a(m - n)``.

    Parameters
    ----------
    q, k, positions, k_positions
        As for :func:`shaw`.
    factors : array, (2 * clip + 1,) or (2 * clip + 1, heads)
        a: entry ``clip + r`` is for keys r tokens before the query, r clipped.
    scale : float, default 1.0
        The result is multiplied by it; the paper has ``head_dim ** -0.5``.

    Returns
    -------
    array, (batch..., heads, q tokens, k tokens)
        Like q. Computed in float32, in float64 for float64 q.

    Raises
    ------
    RopeError, TypeError
        As :func:`shaw`.

    Notes
    -----
    No equation of RoFormer, arXiv 2104.09864, whose eq. 3 to 10 are sums. Huang et al., "Improve
    Transformer Models with Better Relative Position Embeddings", arXiv 2009.13658: method 2, and
    method 1 where the factors of r and -r are equal.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import encodings
    >>> q = k = np.ones((3, 1, 1))
    >>> encodings.multiplicative(q, k, np.array([0.0, 1.0, 0.5])).tolist()
    [[[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.5, 0.5, 1.0]]]
    """
    scale = _heads.check_scale(scale)
    pair = _pair.pair(q, k, positions, k_positions)
    axes = "(2 * clip + 1,) or (2 * clip + 1, heads)"
    a = pair.parameter("factors", factors, axes, (None,), (None, pair.heads))
    clip = _pair.check_rows("factors", a.shape[0], odd=True)
    rows = pair.rows(a if a.ndim == 2 else a[:, None], pair.clipped(clip, clip))
    scores = pair.content() * pair.xp.moveaxis(rows, -1, -3)
    return pair.result(scores * scale)  # type: ignore[no-any-return]  # same kind as q


def _shared(pair: _pair.Pair, name: str, table: ArrayT) -> ArrayT:
    """Return the row of each distance from a table for all heads."""
    checked = pair.parameter(name, table, "(2 * clip + 1, head_dim)", (None, pair.head_dim))
    clip = _pair.check_rows(name, checked.shape[0], odd=True)
    return pair.rows(checked, pair.clipped(clip, clip))  # type: ignore[no-any-return]  # as table
