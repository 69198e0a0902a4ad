"""Linear attention. Public in :mod:`rope_xp.papers.attention`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from rope_xp._arguments import messages
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.papers import _heads
from rope_xp.papers.attention import _checks, _products
from rope_xp.rope import Positions, RoPE

_CHUNK = 128
"""Tokens whose products are held at once; causal attention keeps a square of them."""

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

    Parameters
    ----------
    q, k, positions, rope
        As for :func:`scores`, with as many tokens in k as in q.
    v : array, (batch..., tokens, k heads, v head_dim)
        Never rotated.
    feature_map : {"elu", "softmax"} or (phi, varphi), default "elu"
        "elu": elu(x) + 1 of both. "softmax": a softmax of q over head_dim, and of k over tokens.
        Or a function of q and one of k, which take and return (batch..., tokens, heads, features).
    causal : bool, default False
        Whether a token attends only to those up to itself, by their order. Not with "softmax".

    Returns
    -------
    array, (batch..., tokens, heads, v head_dim)
        Zeros where the denominator is zero: where no feature of the query meets one of a key.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 17-19. phi(q) and varphi(k) are rotated in the numerator. The
    denominator stays as it is without positions, as it might otherwise come near zero; so weights
    may be negative, and do not sum to 1. "elu" is of Katharopoulos et al., arXiv 2006.16236; in
    float32 it loses digits where all of q and all of k lie below some -40. "softmax" is of Shen et
    al., arXiv 1812.01243, which divides exp(k) by its sum over tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import attention
    >>> x = np.eye(4)[:, None]
    >>> attention.linear_attention(x, x, x, rope=RoPE(), causal=True)[:2, 0].round(3).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.126, 0.538, 0.0, 0.0]]
    """
    arrays = _checks.check_arrays(q, k, v)
    _checks.check_same_tokens("linear_attention", arrays.q, arrays.k)
    backend, xp = arrays.backend, arrays.backend.xp
    phi, varphi = _feature_maps(xp, feature_map, causal)
    plain_q = _apply_map(backend, "phi", phi, arrays.q)
    plain_k = _apply_map(backend, "varphi", varphi, arrays.k)
    if plain_q.shape[-1] != plain_k.shape[-1]:
        msg = (
            f"phi made {plain_q.shape[-1]} features and varphi {plain_k.shape[-1]}; their products "
            "are summed, so make as many of each"
        )
        raise RopeError(msg)
    rotated_q, rotated_k = _checks.rotate(rope, plain_q, plain_k, positions)
    operands = (
        _products.heads_first(xp, x, arrays.q.shape[-2])
        for x in (rotated_q, rotated_k, plain_q, plain_k, arrays.v)
    )
    result = _attend_causal(backend, *operands) if causal else _attend_all(xp, *operands)
    result = _heads.swap_tokens_and_heads(xp, result)
    return _heads.cast_like(xp, result, q)


def _elu_plus_one(xp: Namespace, x: Array) -> Array:
    """Return elu(x) + 1: x + 1 above zero, exp(x) below."""
    # exp sees no large x, whose infinity would make the gradient of where not a number.
    return xp.where(x > 0.0, x + 1.0, xp.exp(_products.keep(xp, x < 0.0, x, 0.0)))


def _feature_maps(xp: Namespace, feature_map: Any, causal: bool) -> tuple[_Map, _Map]:
    """Return (phi, varphi), which take (batch..., tokens, heads, head_dim)."""
    expected = "feature_map must be 'elu', 'softmax' or two functions (phi, varphi)"
    if isinstance(feature_map, str):
        if feature_map == "elu":
            return lambda q: _elu_plus_one(xp, q), lambda k: _elu_plus_one(xp, k)
        if feature_map != "softmax":
            raise RopeError(f"{expected}; got {feature_map!r}")
        if causal:
            msg = (
                "feature_map='softmax' takes a softmax of k over all tokens, also later ones, so "
                "it cannot be causal; use 'elu', or functions of each token alone"
            )
            raise RopeError(msg)
        return lambda q: _products.softmax(xp, q, -1), lambda k: _products.softmax(xp, k, -3)
    if (
        not isinstance(feature_map, Sequence)
        or len(feature_map) != 2
        or not all(map(callable, feature_map))
    ):
        raise TypeError(f"{expected}; got {feature_map!r}")
    phi, varphi = feature_map
    return phi, varphi


def _apply_map(backend: Backend, name: str, function: _Map, x: Array) -> Array:
    """Return a feature map of x, checked and in the dtype of x."""
    result = function(x)
    owner = find.require_backend(result, f"what {name} returned")
    if owner is not backend:
        raise messages.different_libraries("q", backend, f"what {name} returned", owner)
    if tuple(result.shape[:-1]) != tuple(x.shape[:-1]):
        msg = (
            f"{name} made {tuple(result.shape)} of shape {tuple(x.shape)}; it may change the last "
            "axis alone, as it maps each head of each token"
        )
        raise RopeError(msg)
    return backend.xp.astype(result, x.dtype, copy=False)


def _attend_all(
    xp: Namespace, q: Array, k: Array, plain_q: Array, plain_k: Array, v: Array
) -> Array:
    """Return linear attention of all tokens to all; arrays (batch..., heads, tokens, d)."""
    state = xp.matmul(xp.matrix_transpose(k), v)
    total = xp.sum(plain_k, axis=-2, keepdims=True, dtype=v.dtype)
    denominator = xp.sum(plain_q * total, axis=-1, keepdims=True, dtype=v.dtype)
    return _products.divide(xp, xp.matmul(q, state), denominator)


def _attend_causal(
    backend: Backend, q: Array, k: Array, plain_q: Array, plain_k: Array, v: Array
) -> Array:
    """Return linear attention of each token to those up to itself, in chunks of tokens.

    Prefix sums stand for all earlier chunks; within its chunk a token takes the quadratic form.
    """
    xp, tokens = backend.xp, q.shape[-2]
    numerator, denominator = _PrefixSum(backend), _PrefixSum(backend)
    parts = []
    for start in range(0, max(tokens, 1), _CHUNK):  # one empty chunk where there are no tokens
        cut = (..., slice(start, min(start + _CHUNK, tokens)), slice(None))
        ones = xp.ones_like(plain_k[cut][..., :1])
        above = numerator.add(q[cut], k[cut], v[cut])
        below = denominator.add(plain_q[cut], plain_k[cut], ones)
        parts.append(_products.divide(xp, above, below))
    return xp.concat(parts, axis=-2)


class _PrefixSum:
    """The sum of k v^T over all tokens so far, and its products with the tokens of q."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.state: Array | None = None

    def add(self, q: Array, k: Array, v: Array) -> Array:
        """Return sum_n (q_m k_n) v_n over n <= m for a chunk, and add the chunk to the sum."""
        xp = self.backend.xp
        within = xp.matmul(q, xp.matrix_transpose(k))
        mask = _products.causal_mask(self.backend, q, q.shape[-2], k.shape[-2])
        result = xp.matmul(_products.keep(xp, mask, within, 0.0), v)
        of_chunk = xp.matmul(xp.matrix_transpose(k), v)
        if self.state is None:
            self.state = of_chunk
            return result
        result = result + xp.matmul(q, self.state)
        self.state = self.state + of_chunk
        return result
