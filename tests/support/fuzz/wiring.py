"""The formula of many calls at once: rows of head_dim numbers, compared in long double."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from support.fuzz import oracle
from support.fuzz.bounds import LEAST, ROUNDING
from support.fuzz.oracle import WIDE

WIDTH = 16  # the largest head_dim; shorter rows are filled with zeros
COMPONENTS = 3  # the most components of positions
NORM_ROUNDINGS = 12
"""Half of nine in a sum of 16 squares; of eps, weight, their sum with an offset, the factor and its
two products; and what is left of these to the second order."""


class Wiring(NamedTuple):
    """How a row comes about: ``y = scale * (x[first] * cos(a) + x[second] * sign * sin(a))``.

    Each field has WIDTH numbers, one for each component of y.
    """

    first: np.ndarray
    second: np.ndarray
    component: np.ndarray  # of positions
    frequency: np.ndarray
    sign: np.ndarray
    scale: np.ndarray
    normalized: np.ndarray  # of x
    rotated: np.ndarray  # of y


def wire(rope, head_dim, *, inverse=False, scaled=True, normalized=None):
    """Return the wiring of a rope. ``normalized``: nothing, "slice" or "row"."""
    r = rope.rotary_dim or head_dim
    start = rope.rotary_offset % head_dim
    (a, b), (to_a, to_b) = oracle.pairs(rope.layout, r, inverse)
    wiring = Wiring(
        *(np.arange(WIDTH), np.arange(WIDTH), np.zeros(WIDTH, int), np.zeros(WIDTH, WIDE)),
        *(np.zeros(WIDTH, WIDE), np.ones(WIDTH, WIDE), np.zeros(WIDTH, bool)),
        np.zeros(WIDTH, bool),
    )
    frequencies = oracle.frequencies(rope.base, r, None)
    if rope.scaling is not None:  # whose float64 numbers have a test
        frequencies = rope.frequencies(head_dim)
    factor = WIDE(rope.attention_factor) if scaled else WIDE(1)
    for to, first, second, sign in ((to_a, a, b, -1), (to_b, b, a, 1)):
        wiring.first[start + to], wiring.second[start + to] = start + first, start + second
        wiring.component[start + to] = rope.position_axes or 0
        wiring.frequency[start + to] = frequencies
        wiring.sign[start + to] = -sign if inverse else sign
        wiring.scale[start + to] = 1 / factor if inverse else factor
        wiring.rotated[start + to] = True
    if normalized is not None:
        span = slice(start, start + r) if normalized == "slice" else slice(head_dim)
        wiring.normalized[span] = True
    return wiring


class Numbers(NamedTuple):
    eps: float
    offset: float
    table_error: float
    angle_error: float  # of cos and sin, for each radian
    frequency_error: float  # the same, for each radian of a frequency
    unit: float  # rounding of the arithmetic
    rounding: float  # of the result, if it is narrower
    least: float


def state_numbers(dtype, far, fractions, eps, offset):
    """Return the numbers of a call, and how far off docs/accuracy.md allows its tables to be."""
    least = LEAST[dtype]
    if dtype == "float64":
        return Numbers(eps, offset, 2.0**-52, 2.0**-52, 0.0, ROUNDING[dtype], 0.0, least)
    error, per_frequency = 4e-7 if far else 2.4e-7, 0.0
    if fractions:
        # The fraction, the frequency and their product in float32, and one rotation more.
        error, per_frequency = error + 2.0**-22, 3 * 2.0**-24
    rounding = 0.0 if dtype == "float32" else ROUNDING[dtype]
    return Numbers(eps, offset, error, 0.0, per_frequency, ROUNDING["float32"], rounding, least)


@dataclass(frozen=True)
class Result:
    """The rows of one array, what they became, and where they came from."""

    wiring: Wiring
    numbers: Numbers
    label: object
    x: np.ndarray
    y: np.ndarray
    positions: np.ndarray  # (rows, components)
    weight: np.ndarray | None  # (length,) or (rows, length)


def check(results):
    if not results:
        return
    lengths = [len(result.x) for result in results]
    call = np.repeat(np.arange(len(results)), lengths)
    w = Wiring(*(np.stack(each)[call] for each in zip(*(r.wiring for r in results), strict=True)))
    numbers = np.array([r.numbers for r in results], WIDE)[call][..., None]
    n = Numbers(*np.moveaxis(numbers, 1, 0))
    x, y, weight = (np.zeros((len(call), WIDTH), WIDE) for _ in range(3))
    positions, begin = np.zeros((len(call), COMPONENTS), WIDE), 0
    for result, length in zip(results, lengths, strict=True):
        rows = slice(begin, begin + length)
        x[rows, : result.x.shape[1]] = result.x
        y[rows, : result.y.shape[1]] = result.y
        positions[rows, : result.positions.shape[1]] = result.positions
        if result.weight is None:
            weight[rows] = 1 - result.numbers.offset
        else:
            start = int(result.wiring.normalized.argmax())
            weight[rows, start : start + result.weight.shape[-1]] = result.weight
        begin += length
    squares = np.where(w.normalized, x * x, 0).sum(1, keepdims=True)
    mean = squares / np.maximum(w.normalized.sum(1, keepdims=True), 1)
    size, factor = np.abs(x), 1 / np.sqrt(mean + n.eps)
    size = np.where(w.normalized, size * factor * (np.abs(weight) + n.offset), size)
    x = np.where(w.normalized, x * factor * (weight + n.offset), x)
    angle = np.take_along_axis(positions, w.component, 1) * w.frequency
    x1, x2 = (np.take_along_axis(x, i, 1) for i in (w.first, w.second))
    size_1, size_2 = (np.take_along_axis(size, i, 1) for i in (w.first, w.second))
    right = w.scale * (x1 * np.cos(angle) + x2 * w.sign * np.sin(angle))
    size = np.where(w.rotated, size_1 + size_2, size_1)
    error = n.table_error + n.angle_error * np.abs(angle) + n.frequency_error * w.frequency
    # Of tables; of two products and their sum; of a norm; of the result.
    error = np.where(w.rotated, error + 3 * n.unit, 0) * w.scale * (1 + WIDE(2.0**-20))
    normalized = np.take_along_axis(w.normalized, w.first, 1)
    error = error + np.where(normalized, NORM_ROUNDINGS * n.unit, 0) * w.scale
    bound = size * error
    is_exact = bound == 0
    bound = bound + (np.abs(right) + bound) * n.rounding + 4 * n.least
    wrong = np.argwhere(~(np.abs(y - right) <= np.where(is_exact, 0, bound)))
    for row, i in wrong[:1].tolist():
        raise AssertionError(
            f"component {i} is {y[row, i]!r}, right is {right[row, i]!r}, allowed {bound[row, i]!r}"
            f" off, in {results[call[row]].label}"
        )
