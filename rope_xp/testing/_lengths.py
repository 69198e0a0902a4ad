"""Find scalings that depend on the length of a call: its largest position, or its token count."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.scaling import DynamicNTK
from rope_xp.testing import _rules
from rope_xp.testing._box import CallRefused, Complex, Floats
from rope_xp.testing._pairs import RotatedArray

_FIRST = (1, 2, 3, 5)
_FILLER = 6
_SAME = 1e-5


class LengthDependence(NamedTuple):
    """How angles depend on the length of a call."""

    trained: int
    """Up to which length angles are those of a short call."""
    counts_tokens: bool
    """Whether tokens count, and not the largest position."""
    fault: str


def _read_at_length(
    array: RotatedArray, positions: list[int], n: int, *, counts_tokens: bool
) -> Complex:
    """Return the turns of positions in a call of n tokens, or with the largest position n - 1."""
    padding = [_FILLER] * (n - len(positions)) if counts_tokens else [n - 1]
    return array.read([*positions, *padding])[: len(positions)]


def check_positions(array: RotatedArray) -> None:
    """Check that the tokens of a short call are rotated as alone."""
    together = array.read(_FIRST)
    try:
        alone = [array.read([position])[0] for position in _FIRST]
    except CallRefused as refused:
        raise RopeError(f"function takes several tokens, and not one alone: {refused}") from refused
    off = np.abs(together - alone).max(axis=1)
    if off.max() > _SAME:
        others = array.read([_FILLER] * len(_FIRST))
        ignored = np.abs(others - together).max() < 1e-4
        cause = "the function ignores positions" if ignored else "its place in the call counts too"
        raise RopeError(
            f"angles depend on more than positions: position {_FIRST[off.argmax()]} is turned "
            f"otherwise alone in a call than with others; {cause}"
        )


def find_length_dependence(array: RotatedArray) -> LengthDependence | None:
    """Return how angles depend on the length of a call, None if they do not."""
    short = array.read(_FIRST)
    for quantity, largest, counts_tokens in (
        ("the largest position of a call", 1 << 17, False),
        ("the number of tokens of a call", 1 << 13, True),
    ):

        def is_short(n: int, counts_tokens: bool = counts_tokens) -> bool:
            turns = _read_at_length(array, list(_FIRST), n, counts_tokens=counts_tokens)
            return bool(np.abs(turns - short).max() <= _SAME)

        for longest in (largest, largest // 32, largest // 256):
            try:
                if is_short(longest):
                    break
            except CallRefused:
                continue
            if not is_short(len(_FIRST) + 2):
                raise RopeError(f"angles depend on {quantity}, however short it is")
            trained = find_last(is_short, len(_FIRST) + 2, longest)
            fault = (
                f"angles depend on {quantity}: they change beyond {trained}, and keys that were "
            )
            fault += "cached before turn by the old ones"
            return LengthDependence(trained, counts_tokens, fault)
    return None


def find_last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number at which a predicate holds, by bisection of low and high."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def find_dynamic_ntk(
    array: RotatedArray, length: LengthDependence, base: float, short: Floats
) -> DynamicNTK | None:
    """Return the dynamic NTK by which frequencies change with the length, None if it does not fit.

    ``short`` are the frequencies of a short call, of all r/2 pairs.
    """
    steps = [0, *(1 << k for k in range(9))]
    lengths = [2 * length.trained, 4 * length.trained]
    slowdowns = []
    for n in lengths:
        try:
            turns = _read_at_length(array, steps, n, counts_tokens=length.counts_tokens)
        except CallRefused:
            return None
        slowest = abs(float(np.angle(turns[-1] / turns[0])[-1])) / steps[-1]
        # The base grows by g ** (r / (r - 2)), so the slowest pair is g times slower.
        slowdowns.append(short[-1] / slowest if slowest else np.inf)
    slope = (slowdowns[1] - slowdowns[0]) / (lengths[1] - lengths[0])
    for factor in _rules.round_to_few_digits(slope * length.trained, 2e-2):
        scaling = DynamicNTK(factor, length.trained)
        slow = [scaling.for_length(n).frequencies(base, 2 * len(short))[-1] for n in lengths]
        if np.allclose(slow, short[-1] / np.array(slowdowns), rtol=2e-3, atol=0.0):
            return scaling
    return None
