"""Curves over distance. Public in :mod:`rope_xp.papers.analysis`."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core import numbers
from rope_xp.papers.analysis import _distances
from rope_xp.rope import RoPE


def decay_bound(rope: RoPE, head_dim: int, distances: ArrayLike) -> NDArray[np.float64]:
    r"""Return how much of a score can be left at a distance: RoFormer's long-term decay.

    Parameters
    ----------
    rope : RoPE
        With any scaling, fixed by :meth:`rope_xp.RoPE.for_length` where it depends on length.
    head_dim : int
        Components of a head.
    distances : array_like, any shape
        In tokens, integers or floats.

    Returns
    -------
    numpy.ndarray
        Of the shape of distances, float64, without unit: the mean of ``|S_j|`` over j = 1 ... r/2,
        where ``S_j`` is the sum of ``exp(1j * distance * frequencies[i])`` over i < j. At distance
        0 it is (r/2 + 1) / 2, the largest that it can be.

    Notes
    -----
    Su et al., "RoFormer", arXiv 2104.09864, section 3.4.3. The score is the real part of the sum of
    ``h_i exp(1j * distance * frequencies[i])``, h_i the product of pair i of the query and the
    conjugate of that of the key (eq. 35). Summed by parts (eq. 36) it is at most the largest
    ``|h_(i+1) - h_i|`` times the sum of all ``|S_j|`` (eq. 37), with h_(r/2) = 0. Figure 2 shows
    the mean that is returned here. The attention factor and components that pass through are left
    out.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.decay_bound(RoPE(), 128, [0, 10, 100, 250]).round(2).tolist()
    [32.5, 17.95, 10.23, 6.55]
    """
    frequencies = _distances.check_frequencies(rope, head_dim)
    distances = _distances.check_finite(distances)
    bound = np.empty(distances.size)
    for part, angles in _distances.iterate_angles(distances, frequencies):
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
    rope, head_dim
        As for :func:`decay_bound`.
    distances : array_like, any shape
        As for :func:`decay_bound`. Positive where the key comes before the query.
    q, k : array_like, (head_dim,), optional
        Query and key before rotation. Default: all ones.

    Returns
    -------
    numpy.ndarray
        Of the shape of distances, float64: the dot product of the rotated q and k, not normalised
        and before any softmax scale. The attention factor is in it, squared, as it is after
        :func:`rope_xp.apply`. With all ones, no scaling and no components that pass through it is
        twice the sum of ``cos(distance * frequencies[i])``, and head_dim at distance 0.

    Notes
    -----
    RoFormer, arXiv 2104.09864, eq. 35.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.score_curve(RoPE(), 128, [0, 1, 1000, 1707]).round(2).tolist()
    [128.0, 124.19, 20.36, -1.0]
    """
    frequencies = _distances.check_frequencies(rope, head_dim)
    distances = _distances.check_finite(distances)
    q, k = _distances.check_vector("q", q, head_dim), _distances.check_vector("k", k, head_dim)
    products = (
        _distances.complex_pairs(rope, head_dim, q)
        * _distances.complex_pairs(rope, head_dim, k).conj()
    )
    constant = float(q @ k - products.real.sum())  # of the components that pass through
    score = np.empty(distances.size)
    for part, angles in _distances.iterate_angles(distances, frequencies):
        score[part] = np.cos(angles) @ products.real
        if products.imag.any():  # not for ones, nor for any q along k; it takes half the time
            score[part] -= np.sin(angles) @ products.imag
    score *= rope.attention_factor**2
    return (score + constant).reshape(distances.shape)


def max_distance(rope: RoPE, head_dim: int, *, limit: int = 2**20) -> int | None:
    """Return the smallest distance at which the sum of cosines over all pairs is negative.

    Parameters
    ----------
    rope, head_dim
        As for :func:`decay_bound`.
    limit : int, default 2**20
        The last distance to look at, in tokens.

    Returns
    -------
    int or None
        In tokens; None if no sum up to the limit is negative. Every whole distance is looked at.
        It does not grow steadily with the base: a single dip decides.

    Notes
    -----
    Men et al., "Base of RoPE Bounds Context Length", arXiv 2405.14591: as long as the sum of
    ``cos(distance * frequencies[i])`` is not negative, a key like the query is expected to score
    higher than any other. The paper's L, the last distance up to which that holds, is one less.
    Components that pass through are left out; pairs of frequency zero are in.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> analysis.max_distance(RoPE(), 128), analysis.max_distance(RoPE(base=500000.0), 128)
    (1707, 18438)
    """
    numbers.check_positive_int("limit", limit)
    frequencies = _distances.check_frequencies(rope, head_dim)
    length = _distances.block_length(len(frequencies))
    for start in range(1, limit + 1, length):
        distances = np.arange(start, min(start + length, limit + 1))
        sums = np.cos(np.multiply.outer(distances, frequencies)).sum(axis=1)
        # Twice what rounding the angles, the cosines and their sum may cost.
        terms = len(frequencies)
        doubt = (distances * np.abs(frequencies).sum() + terms * (terms + 8)) * 2.0**-52
        for i in np.flatnonzero(sums < doubt):
            if (
                sums[i] < -doubt[i]
                or _distances.sum_cosines_exactly(int(distances[i]), frequencies) < 0
            ):
                return int(distances[i])
    return None


def turns(rope: RoPE, head_dim: int, tokens: float) -> NDArray[np.float64]:
    """Return how many turns each pair makes within a context.

    Parameters
    ----------
    rope, head_dim
        As for :func:`decay_bound`.
    tokens : int or float
        Length of the context, positive.

    Returns
    -------
    numpy.ndarray
        Shape (r/2,), float64: ``tokens`` divided by :meth:`rope_xp.RoPE.wavelengths`; 0 where the
        frequency is zero. Of a pair below 1 a model that was trained on that context has not seen
        all angles.

    Notes
    -----
    Peng et al., "YaRN", arXiv 2309.00071, eq. 17: r(d), L divided by the wavelength.

    Examples
    --------
    >>> from rope_xp import RoPE
    >>> from rope_xp.papers import analysis
    >>> turned = analysis.turns(RoPE(), 128, 4096)
    >>> int((turned >= 1).sum()), len(turned)
    (46, 64)
    """
    numbers.check_positive("tokens", tokens)
    return tokens * _distances.check_frequencies(rope, head_dim) / (2.0 * math.pi)
