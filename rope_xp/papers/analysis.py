"""What a rotary embedding does to scores over distance, in numpy float64.

A distance is query position minus key position, in tokens, the same in all components. Angles are
float64 products, with errors up to ``distance * frequency * 2**-52`` plus the rounding of the
frequency. All functions raise RopeError if a value is out of range or not finite, and like
:meth:`rope_xp.RoPE.frequencies`; TypeError if an argument is not a number.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._arguments import fields
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp.rope import RoPE

__all__ = ["decay_bound", "max_distance", "score_curve", "turns"]

_BLOCK = 2**13  # distances at once, where the first one ends the search


def decay_bound(rope: RoPE, head_dim: int, distances: ArrayLike) -> NDArray[np.float64]:
    r"""Return RoFormer's long-term decay: a bound on scores at each distance, up to a factor.

    Su et al., "RoFormer", arXiv 2104.09864, section 3.4.3. A score, summed by parts (eq. 36), is at
    most the largest ``|h_(i+1) - h_i|`` times the sum of all ``|S_j|`` (eq. 37). There h_i is pair
    i of the query times the conjugate pair i of the key. Figure 2 shows the mean of ``|S_j|``. The
    attention factor and components that pass through are left out.

    Parameters
    ----------
    rope : RoPE
        Any scaling. If it depends on length, fix it by :meth:`rope_xp.RoPE.for_length`.
    head_dim : int
        Components of a head.
    distances : array_like, any shape
        Integers or floats, in tokens.

    Returns
    -------
    numpy.ndarray
        float64 with the shape of distances, without unit: the mean of ``|S_j|`` over j = 1 ... r/2,
        where ``S_j`` is the sum of ``exp(1j * distance * frequencies[i])`` over i < j. At distance
        0 it is (r/2 + 1) / 2, its largest value.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.decay_bound(RoPE(), 128, [0, 10, 100, 250]).round(2).tolist()
    [32.5, 17.95, 10.23, 6.55]
    """
    frequencies = _check_frequencies(rope, head_dim)
    distances = _check_finite("distances", distances)
    partial_sum, bound = np.zeros(distances.shape, complex), np.zeros(distances.shape)
    for frequency in frequencies:
        partial_sum += np.exp(1j * (distances * frequency))
        bound += np.abs(partial_sum)
    bound /= len(frequencies)
    return bound


def score_curve(
    rope: RoPE,
    head_dim: int,
    distances: ArrayLike,
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the score of a query and a key at each distance.

    Parameters
    ----------
    rope, head_dim, distances
        As for :func:`decay_bound`. Distances are positive if the key comes before the query.
    q, k : array_like, (head_dim,), optional
        Query and key before rotation. Default: all ones.

    Returns
    -------
    numpy.ndarray
        float64 with the shape of distances: the dot product of q and k after :func:`rope_xp.apply`,
        before any softmax scale (RoFormer, eq. 35). For all ones, no scaling and no components that
        pass through, it is twice the sum of ``cos(distance * frequencies[i])``.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.score_curve(RoPE(), 128, [0, 1, 1000, 1707]).round(2).tolist()
    [128.0, 124.19, 20.36, -1.0]
    """
    frequencies = _check_frequencies(rope, head_dim)
    distances = _check_finite("distances", distances)
    q, k = _check_vector("q", q, head_dim), _check_vector("k", k, head_dim)
    products = _complex_pairs(rope, q) * _complex_pairs(rope, k).conj()
    # That of the components that pass through.
    score = np.full(distances.shape, q @ k - products.real.sum())
    for frequency, product in zip(frequencies, rope.attention_factor**2 * products, strict=True):
        score += np.cos(distances * frequency) * product.real
        if product.imag:  # not of ones, nor of any q along k; it takes half the time
            score -= np.sin(distances * frequency) * product.imag
    return score


def max_distance(rope: RoPE, head_dim: int, *, limit: int = 2**20) -> int | None:
    """Return the smallest distance at which the sum of cosines over all pairs is negative.

    Men et al., "Base of RoPE Bounds Context Length", arXiv 2405.14591: up to the last distance
    before it, L, a key like the query is expected to score higher than any other. Components that
    pass through are left out; pairs with frequency zero are included.

    Parameters
    ----------
    rope, head_dim
        As for :func:`decay_bound`.
    limit : int, default 2**20
        Largest distance to try, in tokens.

    Returns
    -------
    int or None
        In tokens; None if the sum of ``cos(distance * frequencies[i])`` is negative at no whole
        distance up to the limit. One dip decides, so the result does not grow steadily with base.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.max_distance(RoPE(), 128), analysis.max_distance(RoPE(base=500000.0), 128)
    (1707, 18438)
    """
    numbers.check_positive_int("limit", limit)
    frequencies = _check_frequencies(rope, head_dim)
    for start in range(1, limit + 1, _BLOCK):
        distances = np.arange(start, min(start + _BLOCK, limit + 1))
        sums = sum(np.cos(distances * frequency) for frequency in frequencies)
        if negative := np.flatnonzero(sums < 0).tolist():
            return start + int(negative[0])
    return None


def turns(rope: RoPE, head_dim: int, tokens: float) -> NDArray[np.float64]:
    """Return how many turns each pair makes within a context.

    Peng et al., "YaRN", arXiv 2309.00071, eq. 17: r(d). A model trained on that context has not
    seen all angles of a pair with less than one turn.

    Parameters
    ----------
    rope, head_dim
        As for :func:`decay_bound`.
    tokens : int or float
        Length of the context, positive.

    Returns
    -------
    numpy.ndarray
        Shape (r/2,), float64: ``tokens / rope.wavelengths(head_dim)``, 0 for frequency zero.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.turns(RoPE(), 8, 4096).round(2).tolist()
    [651.9, 65.19, 6.52, 0.65]
    """
    numbers.check_positive("tokens", tokens)
    return tokens * _check_frequencies(rope, head_dim) / (2.0 * math.pi)


def _check_frequencies(rope: RoPE, head_dim: int) -> NDArray[np.float64]:
    fields.check_rope(rope, RoPE)
    return rope.frequencies(head_dim)


def _check_finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and array.size:  # an empty list has no dtype of its own
        raise TypeError(f"{name} must hold integers or floats; got {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise RopeError(f"{name} must be finite; got {array[~np.isfinite(array)][0]} among them")
    return array


def _check_vector(name: str, values: ArrayLike | None, head_dim: int) -> NDArray[np.float64]:
    if values is None:
        return np.ones(head_dim)
    vector = _check_finite(name, values)
    if vector.shape != (head_dim,):
        raise RopeError(f"{name} must have shape (head_dim,) = ({head_dim},); got {vector.shape}")
    return vector


def _complex_pairs(rope: RoPE, x: NDArray[np.float64]) -> NDArray[np.complex128]:
    r, offset = slice_of(rope, len(x))
    rotated = x[offset : offset + r]
    first, second = rotated.reshape(2, -1) if rope.layout == "half" else rotated.reshape(-1, 2).T
    return np.asarray(first + 1j * second)
