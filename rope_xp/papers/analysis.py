"""What a rotary embedding does to scores over distance, in numpy float64.

A distance is query position minus key position, in tokens, the same in all components. Angles are
float64 products, with errors up to ``distance * frequency * 2**-52`` plus the rounding of the
frequency. All functions raise RopeError if a value is out of range or not finite, and like
:meth:`rope_xp.RoPE.frequencies`; TypeError if an argument is not a number.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._arguments import fields
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp.rope import RoPE

__all__ = ["decay_bound", "max_distance", "score_curve", "turns"]

_BLOCK = 2**19  # angles at once: 4 MiB, and some copies of that
_TURN = Fraction("6.28318530717958647692528676655900576839433879875021")


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
    bound = np.empty(distances.size)
    for part, angles in _iterate_angles(distances, frequencies):
        units = np.cos(angles) + 1j * np.sin(angles)
        bound[part] = np.abs(np.cumsum(units, axis=1)).mean(axis=1)
    return bound.reshape(distances.shape)


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
    constant = float(q @ k - products.real.sum())  # of the components that pass through
    score = np.empty(distances.size)
    for part, angles in _iterate_angles(distances, frequencies):
        score[part] = np.cos(angles) @ products.real
        if products.imag.any():  # not for ones, nor for any q along k; it takes half the time
            score[part] -= np.sin(angles) @ products.imag
    score *= rope.attention_factor**2
    return (score + constant).reshape(distances.shape)


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
    pairs, length = len(frequencies), _block_length(frequencies)
    for start in range(1, limit + 1, length):
        distances = np.arange(start, min(start + length, limit + 1))
        sums = np.cos(np.multiply.outer(distances, frequencies)).sum(axis=1)
        # Twice the rounding errors of the angles, the cosines and their sum.
        doubt = (distances * np.abs(frequencies).sum() + pairs * (pairs + 8)) * 2.0**-52
        for i in np.flatnonzero(sums < doubt):
            distance = int(distances[i])
            if sums[i] < -doubt[i] or _sum_cosines_exactly(distance, frequencies) < 0:
                return distance
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


def _block_length(frequencies: NDArray[np.float64]) -> int:
    """Return how many distances to take at once, so that memory does not grow with them."""
    return max(1, _BLOCK // len(frequencies))


def _iterate_angles(
    distances: NDArray[np.float64], frequencies: NDArray[np.float64]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices of the flat distances, and their angles (distances, pairs)."""
    flat, length = distances.ravel(), _block_length(frequencies)
    for start in range(0, len(flat), length):
        part = slice(start, start + length)
        yield part, np.multiply.outer(flat[part], frequencies)


def _sum_cosines_exactly(distance: int, frequencies: NDArray[np.float64]) -> float:
    """Return the sum of cosines with angles reduced exactly: off by 1e-15 a pair at most."""
    angles = (distance * Fraction(f) % _TURN for f in frequencies.tolist())
    return math.fsum(math.cos(float(angle)) for angle in angles)
