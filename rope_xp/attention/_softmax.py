"""Scores and the softmax of them. Public in :mod:`rope_xp.attention`."""

import math

from rope_xp import _heads
from rope_xp._contract.typing import ArrayT
from rope_xp.attention import _checks, _products
from rope_xp.rope import Positions, RoPE


def scores(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    k_positions: Positions = None,
    scale: float | None = None,
) -> ArrayT:
    """Return the scaled inner products of queries and keys, before any softmax.

    Parameters
    ----------
    q : array, (batch..., tokens, heads, head_dim)
        float16, bfloat16, float32 or float64.
    k : array, (batch..., k tokens, k heads, head_dim)
        Of the library and device of q. Heads of q are a multiple of those of k.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        In tokens, see :func:`rope_xp.apply`. ``k_positions`` is needed to rotate where k has
        another number of tokens. Not without a rope.
    rope : RoPE, optional
        What q and k are rotated by. None, unlike in :func:`rope_xp.apply`: nothing is rotated.
    scale : float, optional
        Factor on the products. Default: 1 / sqrt(head_dim), times ``rope.softmax_scale``.

    Returns
    -------
    array, (batch..., heads, tokens, k tokens)
        With the dtype, library and device of q.

    Raises
    ------
    RopeError
        If shapes, devices or positions do not fit, or positions come without a rope.
    TypeError
        If an argument is of the wrong type, or q and k are of different libraries.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 16, and the scale of eq. 2.

    Examples
    --------
    They depend on how far apart two tokens are, not on where they are:

    >>> import numpy as np
    >>> from rope_xp import RoPE, attention
    >>> q, k = np.ones((3, 1, 4)), np.ones((3, 1, 4))
    >>> attention.scores(q, k, [10, 11, 12], RoPE()).round(3).tolist()
    [[[2.0, 1.54, 0.584], [1.54, 2.0, 1.54], [0.584, 1.54, 2.0]]]
    """
    given = _checks.check(q, k)
    xp = given.backend.xp
    rotated_q, rotated_k = _checks.rotated(rope, given.q, given.k, positions, k_positions)
    result = _products.scores(xp, rotated_q, rotated_k, _scale(scale, rope, given))
    return xp.astype(result, given.dtype, copy=False)  # type: ignore[no-any-return]  # same kind


def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    k_positions: Positions = None,
    mask: ArrayT | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> ArrayT:
    """Return softmax attention with rotated queries and keys.

    Parameters
    ----------
    q, k, positions, rope, k_positions, scale
        As for :func:`scores`.
    v : array, (batch..., k tokens, k heads, v head_dim)
        Never rotated.
    mask : array, broadcastable to (batch..., heads, tokens, k tokens), optional
        Boolean, of the library and device of q. True: may attend.
    causal : bool, default False
        Whether token i of q attends only to tokens 0 to i of k, by their order and not by their
        positions, as torch and jax have it; together with ``mask``, where both allow it. Where q
        follows cached keys, give a mask instead: ``k_positions <= positions[:, None]``.

    Returns
    -------
    array, (batch..., tokens, heads, v head_dim)
        With the dtype, library and device of q. Zeros where a token may attend to nothing.

    Raises
    ------
    RopeError, TypeError
        As :func:`scores`; also if v or mask do not fit.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 2, with eq. 16 in its exponent. The softmax is computed in
    float32 or float64, less the largest score of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE, attention
    >>> x = np.eye(4)[:, None]
    >>> attention.attention(x, x, x, rope=RoPE(), causal=True)[:2, 0].round(3).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.285, 0.715, 0.0, 0.0]]
    """
    given = _checks.check(q, k, v)
    backend, xp = given.backend, given.backend.xp
    rows, heads = given.q.shape[-3:-1]
    columns = given.k.shape[-3]
    if mask is not None:
        shape = (*given.q.shape[:-3], heads, rows, columns)
        axes = "(batch..., heads, tokens, k tokens)"
        _checks.check_mask(given, mask, shape, axes)
    rotated_q, rotated_k = _checks.rotated(rope, given.q, given.k, positions, k_positions)
    logits = _products.scores(xp, rotated_q, rotated_k, _scale(scale, rope, given))
    if mask is not None:
        logits = _products.keep(xp, mask, logits, -math.inf)
    if causal:
        earlier = _products.in_order(backend, logits, rows, columns)
        logits = _products.keep(xp, earlier, logits, -math.inf)
    weights = _products.softmax(xp, logits, -1)
    result = xp.matmul(weights, _products.heads_first(xp, given.v, heads))
    result = _heads.swap_tokens_and_heads(xp, result)
    return xp.astype(result, given.dtype, copy=False)  # type: ignore[no-any-return]  # same kind


def _scale(scale: float | None, rope: RoPE | None, given: _checks.Checked) -> float:
    if scale is not None:
        return _heads.check_scale(scale)
    factor = 1.0 if rope is None else rope.softmax_scale
    return factor / math.sqrt(given.q.shape[-1])
