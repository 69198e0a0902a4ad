"""Linear attention. Public in :mod:`rope_xp.papers.attention`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from rope_xp._arguments import checks
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT, Namespace
from rope_xp._dispatch.backend import Backend
from rope_xp.papers import _heads
from rope_xp.rope import Positions, RoPE

_CHUNK = 128  # tokens whose products are held at once; causal attention keeps a square of them

_Map: TypeAlias = Callable[[Array], Array]
FeatureMap: TypeAlias = Literal["elu", "softmax"] | tuple[_Map, _Map]


def linear_attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    feature_map: FeatureMap = "elu",
    causal: bool = False,
) -> ArrayT:
    """Return linear attention with rotated feature maps, in time and memory linear in tokens.

    Su et al., arXiv 2104.09864, eq. 17-19. phi(q) and varphi(k) are rotated only in the numerator,
    because the denominator might otherwise be near zero. So weights may be negative, and do not sum
    to 1. In float32, "elu" loses digits if all of q and all of k are below about -40.

    Parameters
    ----------
    q, k, positions, rope
        As for :func:`scores`, with as many tokens in k as in q.
    v : array, (batch..., tokens, k heads, v head_dim)
        Values, which are not rotated.
    feature_map : {"elu", "softmax"} or (phi, varphi), default "elu"
        "elu": elu(x) + 1 for both (Katharopoulos et al., arXiv 2006.16236). "softmax": a softmax of
        q over head_dim, and of k over tokens (Shen et al., arXiv 1812.01243). Or two functions, for
        q and for k, that take and return (batch..., tokens, heads, features).
    causal : bool, default False
        Whether a token attends only to itself and to tokens before it. Not for "softmax".

    Returns
    -------
    array, (batch..., tokens, heads, v head_dim)
        Zeros where the denominator is zero, because query and keys share no nonzero feature.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.eye(4)[:, None]
    >>> attention.linear_attention(x, x, x, rope=RoPE(), causal=True)[:2, 0].round(3).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.126, 0.538, 0.0, 0.0]]
    """
    arrays = _heads.check_arrays(q=q, k=k, v=v, same_tokens=True)
    backend, xp = arrays.backend, arrays.backend.xp
    phi, varphi = _feature_maps(xp, feature_map, causal)
    plain_q = _apply_map(backend, "phi", phi, arrays.q, ...)
    plain_k = _apply_map(backend, "varphi", varphi, arrays.k, plain_q.shape[-1])
    rotated_q, rotated_k = _heads.rotate(rope, plain_q, plain_k, positions)
    rotated_q, rotated_k, plain_q, plain_k, values = (
        _heads.swap_tokens_and_heads(xp, _heads.repeat_heads(xp, x, arrays.q.shape[-2]))
        for x in (rotated_q, rotated_k, plain_q, plain_k, arrays.v)
    )
    if causal:
        above = _sum_prefixes(backend, rotated_q, rotated_k, values)
        below = _sum_prefixes(backend, plain_q, plain_k, xp.ones_like(plain_k[..., :1]))
    else:
        above = xp.matmul(rotated_q, xp.matmul(xp.matrix_transpose(rotated_k), values))
        total = xp.sum(plain_k, axis=-2, keepdims=True, dtype=values.dtype)
        below = xp.sum(plain_q * total, axis=-1, keepdims=True, dtype=values.dtype)
    result = _heads.swap_tokens_and_heads(xp, _heads.divide(xp, above, below))
    return _heads.cast_like(xp, result, q)


def _elu_plus_one(xp: Namespace, x: Array) -> Array:
    """Return elu(x) + 1: x + 1 above zero, exp(x) below."""
    # exp sees no large x, whose infinity would make the gradient of where not a number.
    return xp.where(x > 0.0, x + 1.0, xp.exp(_heads.keep(xp, x < 0.0, x, 0.0)))


def _feature_maps(xp: Namespace, feature_map: Any, causal: bool) -> tuple[_Map, _Map]:
    """Return (phi, varphi), which take (batch..., tokens, heads, head_dim)."""
    expected = (
        f"feature_map must be 'elu', 'softmax' or two functions (phi, varphi); got {feature_map!r}"
    )
    if isinstance(feature_map, str):
        if feature_map == "elu":
            return partial(_elu_plus_one, xp), partial(_elu_plus_one, xp)
        if feature_map != "softmax":
            raise RopeError(expected)
        if causal:
            raise RopeError(
                "feature_map='softmax' takes a softmax of k over all tokens, even later ones, so "
                "it cannot be causal; use 'elu', or functions of single tokens"
            )
        return partial(_heads.softmax, xp, axis=-1), partial(_heads.softmax, xp, axis=-3)
    is_pair = isinstance(feature_map, Sequence) and len(feature_map) == 2
    if not is_pair or not all(map(callable, feature_map)):
        raise TypeError(expected)
    phi, varphi = feature_map
    return phi, varphi


def _apply_map(backend: Backend, name: str, function: _Map, x: Array, features: Any) -> Array:
    """Return a feature map of x, checked and in the dtype of x."""
    result, name = function(x), f"the result of {name}"
    checks.check_library(backend, "q", x, name, result)
    axes = "(batch..., tokens, heads, features), of each head alone"
    _heads.check_shape(name, result, axes, (*x.shape[:-1], features))
    return backend.xp.astype(result, x.dtype, copy=False)


def _sum_prefixes(backend: Backend, q: Array, k: Array, v: Array) -> Array:
    """Return the sum of (q_m k_n) v_n over n <= m for each token m, in chunks of tokens."""
    # Within its chunk a token takes the quadratic form; one sum of k v^T stands for earlier chunks.
    xp, tokens = backend.xp, q.shape[-2]
    state: Array | None = None
    parts = []
    for start in range(0, max(tokens, 1), _CHUNK):  # one empty chunk where there are no tokens
        stop = min(start + _CHUNK, tokens)
        chunk_q, chunk_k, chunk_v = (x[..., start:stop, :] for x in (q, k, v))
        columns = xp.matrix_transpose(chunk_k)
        earlier = _heads.causal_mask(backend, q, stop - start, stop - start)
        part = xp.matmul(_heads.keep(xp, earlier, xp.matmul(chunk_q, columns), 0.0), chunk_v)
        parts.append(part if state is None else part + xp.matmul(chunk_q, state))
        update = xp.matmul(columns, chunk_v)
        state = update if state is None else state + update
    return xp.concat(parts, axis=-2)
