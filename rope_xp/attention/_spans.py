"""The logits of spans, for :mod:`rope_xp.attention`."""

import math

from rope_xp._contract.typing import ArrayT
from rope_xp.attention import _checks, _products
from rope_xp.rope import Positions, RoPE


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
        As for :func:`scores`, with as many tokens in k as in q. q is of the first token of a span,
        k of its last.
    mask : array, broadcastable to (batch..., tokens), optional
        Boolean, of the library and device of q. False: padding, in no span.
    upper_triangular : bool, default True
        Whether spans that end before they start are left out.
    scale : bool, default True
        Whether to multiply by 1 / sqrt(head_dim).

    Returns
    -------
    array, (batch..., heads, tokens, tokens)
        With the dtype, library and device of q. Where there is no span: -1e12 as the dtype rounds
        it, or -65504 in float16, which holds no more; finite, so that losses that multiply it by
        zero get zero.

    Raises
    ------
    RopeError, TypeError
        As :func:`scores`; also if mask does not fit.

    Notes
    -----
    Su et al., "Global Pointer", arXiv 2208.03054: the score of a span, with RoPE. It is eq. 16 of
    arXiv 2104.09864 for each kind of entity; there is no softmax.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE, attention
    >>> x = np.ones((1, 3, 1, 4))
    >>> real = np.array([[True, True, False]])
    >>> spans = attention.global_pointer(x, x, rope=RoPE(), mask=real)[0, 0]
    >>> spans[0, :2].round(3).tolist(), spans[1, 0].item()
    ([2.0, 1.54], -1000000000000.0)
    >>> (spans > -1e12).tolist()
    [[True, True, False], [False, True, False], [False, False, False]]
    """
    given = _checks.check(q, k)
    _checks.check_same_tokens("global_pointer", given.q, given.k)
    backend, xp, tokens = given.backend, given.backend.xp, given.q.shape[-3]
    if mask is not None:
        _checks.check_mask(given, mask, given.q.shape[:-2], "(batch..., tokens)")
        mask = xp.broadcast_to(mask, tuple(given.q.shape[:-2]))
    rotated_q, rotated_k = _checks.rotated(rope, given.q, given.k, positions)
    factor = 1.0 / math.sqrt(given.q.shape[-1]) if scale else 1.0
    logits = _products.scores(xp, rotated_q, rotated_k, factor)
    none = -65504.0 if backend.dtype_name(q) == "float16" else -1e12
    if mask is not None:
        logits = _products.keep(xp, mask[..., None, :, None], logits, none)  # type: ignore[index]  # an array
        logits = _products.keep(xp, mask[..., None, None, :], logits, none)  # type: ignore[index]  # an array
    if upper_triangular:
        spans = xp.matrix_transpose(_products.in_order(backend, logits, tokens, tokens))
        logits = _products.keep(xp, spans, logits, none)
    return xp.astype(logits, given.dtype, copy=False)  # type: ignore[no-any-return]  # same kind
