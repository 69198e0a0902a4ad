"""Checked arguments of rope_xp.papers.analysis, and angles a block at a time."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._arguments import fields
from rope_xp._arguments.slices import slice_of
from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE

_BLOCK = 2**19
"""Angles at once: 4 MiB, and some copies of that."""
_TURN = Fraction("6.28318530717958647692528676655900576839433879875021")


def check_frequencies(rope: RoPE, head_dim: int) -> NDArray[np.float64]:
    """Return the frequencies of rope, checked to be a RoPE."""
    fields.check_rope(rope, RoPE)
    return rope.frequencies(head_dim)


def check_finite(values: ArrayLike, name: str = "distances") -> NDArray[np.float64]:
    """Return finite real numbers as float64, in their shape."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and array.size:  # an empty list says nothing of its kind
        msg = f"{name} must hold integers or floats; got {array.dtype}"
        raise TypeError(msg)
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        msg = f"{name} must be finite; got {array[~np.isfinite(array)][0]} among them"
        raise RopeError(msg)
    return array


def check_vector(name: str, values: ArrayLike | None, head_dim: int) -> NDArray[np.float64]:
    """Return the components of a head, all ones for None."""
    if values is None:
        return np.ones(head_dim)
    components = check_finite(values, name)
    if components.shape != (head_dim,):
        msg = f"{name} must have the shape (head_dim,) = ({head_dim},); got {components.shape}"
        raise RopeError(msg)
    return components


def complex_pairs(rope: RoPE, head_dim: int, x: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Return the rotated pairs of a vector as complex numbers."""
    r, offset = slice_of(rope, head_dim)
    rotated = x[offset : offset + r]
    halves = rope.layout == "half"
    first, second = rotated.reshape(2, -1) if halves else rotated.reshape(-1, 2).T
    return np.asarray(first + 1j * second)


def block_length(pairs: int) -> int:
    """Return how many distances to take at once, so that memory does not grow with them."""
    return max(1, _BLOCK // pairs)


def iterate_angles(
    distances: NDArray[np.float64], frequencies: NDArray[np.float64]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield parts of the flat distances, and the angles of each, (part, pairs)."""
    flat, length = distances.ravel(), block_length(len(frequencies))
    for start in range(0, len(flat), length):
        part = slice(start, start + length)
        yield part, np.multiply.outer(flat[part], frequencies)


def sum_cosines_exactly(distance: int, frequencies: NDArray[np.float64]) -> float:
    """Return the sum of cosines with angles reduced exactly: off by 1e-15 a pair at most."""
    angles = (distance * Fraction(f) % _TURN for f in frequencies.tolist())
    return math.fsum(math.cos(float(angle)) for angle in angles)
