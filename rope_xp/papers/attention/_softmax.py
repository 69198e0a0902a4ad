"""Scores, their softmax, and span logits. Public in :mod:`rope_xp.papers.attention`."""

import math
from typing import Any

from rope_xp._core.typing import Array, ArrayT
from rope_xp.papers import _heads
from rope_xp.papers.attention import _checks, _products
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
        Rotates q and k. Default, unlike in :func:`rope_xp.apply`: nothing is rotated.
    scale : float, optional
        Factor on the products. Default: 1 / sqrt(head_dim), times ``rope.softmax_scale``.

    Returns
    -------
    array, (batch..., heads, tokens, k tokens)

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 16, and the scale of eq. 2. Scores depend on the distance of
    two tokens, not on their positions.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> q, k = np.ones((3, 1, 4)), np.ones((3, 1, 4))
    >>> attention.scores(q, k, [10, 11, 12], RoPE()).round(3).tolist()
    [[[2.0, 1.54, 0.584], [1.54, 2.0, 1.54], [0.584, 1.54, 2.0]]]
    """
    arrays = _checks.check_arrays(q, k)
    result = _scaled_products(arrays, rope, positions, k_positions, scale)
    return _heads.cast_like(arrays.backend.xp, result, q)


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
        positions, as in torch and jax; together with ``mask``, where both allow it. Where q
        follows cached keys, give a mask instead: ``k_positions <= positions[:, None]``.

    Returns
    -------
    array, (batch..., tokens, heads, v head_dim)
        Zeros where a token may attend to nothing.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 2, with eq. 16 in its exponent. The softmax is computed in
    float32 or float64, less the largest score of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.eye(4)[:, None]
    >>> attention.attention(x, x, x, rope=RoPE(), causal=True)[:2, 0].round(3).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.285, 0.715, 0.0, 0.0]]
    """
    arrays = _checks.check_arrays(q, k, v)
    backend, xp = arrays.backend, arrays.backend.xp
    (rows, heads), columns = arrays.q.shape[-3:-1], arrays.k.shape[-3]
    if mask is not None:
        shape = (*arrays.q.shape[:-3], heads, rows, columns)
        _checks.check_mask(arrays, mask, shape, "(batch..., heads, tokens, k tokens)")
    logits = _scaled_products(arrays, rope, positions, k_positions, scale)
    if mask is not None:
        logits = _products.keep(xp, mask, logits, -math.inf)
    if causal:
        earlier = _products.causal_mask(backend, logits, rows, columns)
        logits = _products.keep(xp, earlier, logits, -math.inf)
    weights = _products.softmax(xp, logits, -1)
    result = xp.matmul(weights, _products.heads_first(xp, arrays.v, heads))
    result = _heads.swap_tokens_and_heads(xp, result)
    return _heads.cast_like(xp, result, q)


def global_pointer(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    mask: ArrayT | None = None,
    upper_triangular: bool = True,
    scale: bool = True,
) -> ArrayT:
    """Return the logit of every span of tokens, one head for each kind of entity.

    Parameters
    ----------
    q, k, positions, rope
        As for :func:`scores`, with as many tokens in k as in q. q belongs to the first token of a
        span, k to its last.
    mask : array, broadcastable to (batch..., tokens), optional
        Boolean, of the library and device of q. False: padding, in no span.
    upper_triangular : bool, default True
        Whether spans that end before they start are left out.
    scale : bool, default True
        Whether to multiply by 1 / sqrt(head_dim).

    Returns
    -------
    array, (batch..., heads, tokens, tokens)
        Where there is no span: -1e12 as the dtype rounds it, or -65504 in float16, which holds no
        more; finite, so that losses that multiply it by zero get zero.

    Notes
    -----
    Su et al., "Global Pointer", arXiv 2208.03054: eq. 16 of arXiv 2104.09864 for each kind of
    entity, without a softmax.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.ones((1, 3, 1, 4))
    >>> real = np.array([[True, True, False]])
    >>> spans = attention.global_pointer(x, x, rope=RoPE(), mask=real)[0, 0]
    >>> spans[0, :2].round(3).tolist(), spans[1, 0].item()
    ([2.0, 1.54], -1000000000000.0)
    >>> (spans > -1e12).tolist()
    [[True, True, False], [False, True, False], [False, False, False]]
    """
    arrays = _checks.check_arrays(q, k)
    _checks.check_same_tokens("global_pointer", arrays.q, arrays.k)
    backend, xp, tokens = arrays.backend, arrays.backend.xp, arrays.q.shape[-3]
    shape = tuple(arrays.q.shape[:-2])
    if mask is not None:
        _checks.check_mask(arrays, mask, shape, "(batch..., tokens)")
    factor = 1.0 / math.sqrt(arrays.q.shape[-1]) if scale else 1.0  # without rope.softmax_scale
    logits = _scaled_products(arrays, rope, positions, None, factor)
    no_span = -65504.0 if backend.dtype_name(q) == "float16" else -1e12
    if mask is not None:
        real = xp.broadcast_to(mask, shape)
        both = real[..., None, :, None] & real[..., None, None, :]
        logits = _products.keep(xp, both, logits, no_span)
    if upper_triangular:
        spans = xp.matrix_transpose(_products.causal_mask(backend, logits, tokens, tokens))
        logits = _products.keep(xp, spans, logits, no_span)
    return _heads.cast_like(xp, logits, q)


def _scaled_products(
    arrays: _checks.CheckedArrays,
    rope: RoPE | None,
    positions: Any,
    k_positions: Any,
    scale: float | None,
) -> Array:
    """Return scaled products of rotated heads, (batch..., heads, q tokens, k tokens)."""
    xp, (heads, head_dim) = arrays.backend.xp, arrays.q.shape[-2:]
    q, k = _checks.rotate(rope, arrays.q, arrays.k, positions, k_positions)
    if scale is None:
        scale = (1.0 if rope is None else rope.softmax_scale) / math.sqrt(head_dim)
    # Scaled before they are multiplied, so that nothing overflows that would fit after scaling.
    q = _products.heads_first(xp, q * _heads.check_scale(scale), heads)
    return xp.matmul(q, xp.matrix_transpose(_products.heads_first(xp, k, heads)))
