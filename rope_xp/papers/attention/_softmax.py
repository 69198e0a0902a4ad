"""Scores, their softmax, and span logits. Public in :mod:`rope_xp.papers.attention`."""

import math
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.typing import Array, ArrayT
from rope_xp.papers import _heads
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

    Su et al., arXiv 2104.09864, eq. 16, and the scale of eq. 2.

    Parameters
    ----------
    q : array, (batch..., tokens, heads, head_dim)
        float16, bfloat16, float32 or float64.
    k : array, (batch..., k tokens, k heads, head_dim)
        Same library and device as q. The heads of q are a multiple of those of k.
    positions, k_positions : array or sequence, broadcastable to (batch..., tokens), optional
        In tokens, see :func:`rope_xp.apply`. They need a rope.
    rope : RoPE, optional
        Rotates q and k. Default: no rotation, unlike in :func:`rope_xp.apply`.
    scale : float, optional
        Factor on the products. Default: 1 / sqrt(head_dim), times ``rope.softmax_scale``.

    Returns
    -------
    array, (batch..., heads, tokens, k tokens)

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.ones((3, 1, 4))
    >>> attention.scores(x, x, [10, 11, 12], RoPE()).round(3).tolist()
    [[[2.0, 1.54, 0.584], [1.54, 2.0, 1.54], [0.584, 1.54, 2.0]]]
    """
    arrays = _heads.check_arrays(q=q, k=k)
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

    Su et al., arXiv 2104.09864, eq. 2, with eq. 16 in the exponent.

    Parameters
    ----------
    q, k, positions, rope, k_positions, scale
        As for :func:`scores`.
    v : array, (batch..., k tokens, k heads, v head_dim)
        Values, which are not rotated.
    mask : array, broadcastable to (batch..., heads, tokens, k tokens), optional
        Boolean, of the library and device of q. True: may attend.
    causal : bool, default False
        Whether token i of q attends only to tokens 0 to i of k, counted as in torch and jax. If q
        follows cached keys, pass a mask: ``k_positions <= positions[:, None]``.

    Returns
    -------
    array, (batch..., tokens, heads, v head_dim)
        Zeros for tokens that may attend to nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.eye(4)[:, None]
    >>> attention.attention(x, x, x, rope=RoPE(), causal=True)[:2, 0].round(3).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.285, 0.715, 0.0, 0.0]]
    """
    arrays = _heads.check_arrays(q=q, k=k, v=v)
    backend, xp = arrays.backend, arrays.backend.xp
    (rows, heads), columns = arrays.q.shape[-3:-1], arrays.k.shape[-3]
    logits = _scaled_products(arrays, rope, positions, k_positions, scale)
    if mask is not None:
        shape = (*arrays.q.shape[:-3], heads, rows, columns)
        _heads.check_mask(arrays, mask, shape, "(batch..., heads, tokens, k tokens)")
        logits = _heads.keep(xp, mask, logits, -math.inf)
    if causal:
        earlier = _heads.causal_mask(backend, logits, rows, columns)
        logits = _heads.keep(xp, earlier, logits, -math.inf)
    values = _heads.swap_tokens_and_heads(xp, _heads.repeat_heads(xp, arrays.v, heads))
    result = xp.matmul(_heads.softmax(xp, logits, -1), values)
    return _heads.cast_like(xp, _heads.swap_tokens_and_heads(xp, result), q)


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

    Su et al., "Global Pointer", arXiv 2208.03054: eq. 16 of arXiv 2104.09864, without a softmax.

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
        Entries without a span are -1e12, or -65504 in float16. They are finite, so that a loss
        that multiplies them by zero gets zero.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x, real = np.ones((3, 1, 4)), np.array([True, True, False])
    >>> spans = attention.global_pointer(x, x, rope=RoPE(), mask=real)
    >>> spans[0, :2].round(2).tolist()
    [[2.0, 1.54, -1000000000000.0], [-1000000000000.0, 2.0, -1000000000000.0]]
    """
    arrays = _heads.check_arrays(q=q, k=k, same_tokens=True)
    backend, xp, tokens = arrays.backend, arrays.backend.xp, arrays.q.shape[-3]
    factor = 1.0 / math.sqrt(arrays.q.shape[-1]) if scale else 1.0  # without rope.softmax_scale
    logits = _scaled_products(arrays, rope, positions, None, factor)
    no_span = -65504.0 if backend.dtype_name(q) == "float16" else -1e12
    if mask is not None:
        shape = tuple(arrays.q.shape[:-2])
        _heads.check_mask(arrays, mask, shape, "(batch..., tokens)")
        real = xp.broadcast_to(mask, shape)
        both = real[..., None, :, None] & real[..., None, None, :]
        logits = _heads.keep(xp, both, logits, no_span)
    if upper_triangular:
        spans = xp.matrix_transpose(_heads.causal_mask(backend, logits, tokens, tokens))
        logits = _heads.keep(xp, spans, logits, no_span)
    return _heads.cast_like(xp, logits, q)


def _scaled_products(
    arrays: _heads.CheckedArrays, rope: RoPE | None, positions: Any, k_positions: Any, scale: Any
) -> Array:
    """Return scaled products of rotated heads, (batch..., heads, q tokens, k tokens)."""
    q, k = _heads.rotate(rope, arrays.q, arrays.k, positions, k_positions)
    if scale is None:
        scale = (1.0 if rope is None else rope.softmax_scale) / math.sqrt(q.shape[-1])
    # Scaled before they are multiplied, so that nothing overflows that would fit after scaling.
    q = q * float(numbers.check_positive("scale", scale))
    return _heads.multiply_heads(arrays.backend.xp, q, k)
