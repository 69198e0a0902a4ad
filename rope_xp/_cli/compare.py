"""Rotate q and k of one attention layer on a target: its time, its error, its agreement.

The arrays are those of Llama-3-8B: 32 query heads, 8 key heads of 128 components, layout "half",
base 500000, float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._apply import apply, explain
from rope_xp._bench import clock, formulas
from rope_xp._bench.targets import Target
from rope_xp._contract.typing import Array, Layout

LAYOUT: Layout = "half"
BASE = 500_000.0
HEAD_DIM = 128
HEADS = (32, 8)
_CHUNK = 256

Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class Row:
    """What one target did from one start position."""

    target: str
    start: int
    path: str
    seconds: float
    times_copy: float
    """How many times as fast as copying q and k."""
    max_error: float
    usual_max_error: float
    """Of the float32 formula in common use, in the same library."""
    ulp_from_first: float
    """Largest difference from the first target, in ulp of the larger component of the pair."""
    slower: str | None = None
    """What is not installed that would make it faster, and how to install it."""


def layer(tokens: int) -> Arrays:
    """Return q and k of random normal numbers, the same in every run."""
    random = np.random.default_rng(0)
    return [
        random.standard_normal((1, tokens, heads, HEAD_DIM), dtype=np.float32) for heads in HEADS
    ]


def run(
    target: Target, arrays: Arrays, start: int, repeat: int, first: Arrays | None
) -> tuple[Row, Arrays]:
    """Return the row of a target, and its results, float32 on the host.

    ``first`` is the results of the first target, None while there is none.
    """
    host_positions = np.arange(start, start + arrays[0].shape[1], dtype=np.int32)
    q, k = (target.put(x) for x in arrays)
    positions = target.put(host_positions)

    def ours() -> tuple[Array, ...]:
        return apply(q, k, positions, layout=LAYOUT, base=BASE)

    def copies() -> tuple[Array, ...]:
        return target.copy(q), target.copy(k)

    explained = explain(q, k, positions, layout=LAYOUT, base=BASE)
    seconds, copy_seconds = clock.best_seconds(target, repeat, ours, copies)
    results = [target.fetch(y) for y in ours()]
    xp = target.backend.xp
    usual = [target.fetch(formulas.usual_rotate(xp, x, positions, BASE)) for x in (q, k)]
    row = Row(
        target=target.name,
        start=start,
        path=explained.path,
        seconds=seconds,
        times_copy=copy_seconds / seconds,
        max_error=max_error(arrays, host_positions, results),
        usual_max_error=max_error(arrays, host_positions, usual),
        ulp_from_first=0.0 if first is None else max_ulp(arrays, results, first),
        slower=next((why for _, why in explained.declined if "not installed" in why), None),
    )
    return row, results


def max_error(arrays: Arrays, positions: NDArray[Any], results: Arrays) -> float:
    """Return the largest difference of results from the rotation in float64."""
    frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)

    def difference(x: NDArray[Any], y: NDArray[Any], part: slice) -> NDArray[Any]:
        exact = formulas.rotate_exact(x[:, part], positions[part], frequencies, LAYOUT)
        return np.abs(y[:, part] - exact)

    return _largest(
        difference(x, y, part)
        for x, y in zip(arrays, results, strict=True)
        for part in _chunks(x.shape[1])
    )


def max_ulp(arrays: Arrays, results: Arrays, others: Arrays) -> float:
    """Return the largest difference of two results, in ulp of the larger component of the pair."""

    def ulps(x: NDArray[Any], y: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        pairs = (*x.shape[:-1], 2, HEAD_DIM // 2)
        unit = np.spacing(np.max(np.abs(x.reshape(pairs)), axis=-2, keepdims=True))
        difference = np.abs(y.astype(np.float64) - other)
        return np.asarray(difference.reshape(pairs) / unit)

    return _largest(
        ulps(x[:, part], y[:, part], other[:, part])
        for x, y, other in zip(arrays, results, others, strict=True)
        for part in _chunks(x.shape[1])
    )


def _chunks(tokens: int) -> Iterator[slice]:
    # float64 of everything at once would take ten times the memory of the arrays.
    return (slice(i, i + _CHUNK) for i in range(0, tokens, _CHUNK))


def _largest(measures: Iterator[NDArray[Any]]) -> float:
    # numpy's max carries NaN on; Python's may lose it.
    return float(np.max([np.max(values) for values in measures]))
