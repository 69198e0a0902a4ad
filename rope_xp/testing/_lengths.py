"""Rules that depend on the length of a call: its largest position, or its number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.scaling import DynamicNTK
from rope_xp.testing import _rules
from rope_xp.testing._box import Complex, Floats, Refused
from rope_xp.testing._pairs import Operand

_FIRST = (1, 2, 3, 5)
_FILLER = 6
_SAME = 1e-5


class LengthRule(NamedTuple):
    """How angles depend on the length of a call."""

    trained: int
    """Up to which length angles are those of a short call."""
    counts_tokens: bool
    """Whether tokens count, and not the largest position."""
    fault: str


def _read_of_length(
    operand: Operand, positions: list[int], n: int, *, counts_tokens: bool
) -> Complex:
    """Return the turns of positions in a call of length n, by tokens or by the largest position."""
    more = [_FILLER] * (n - len(positions)) if counts_tokens else [n - 1]
    return operand.read([*positions, *more])[: len(positions)]


def check_positions(operand: Operand) -> None:
    """Check that a token of a short call is rotated as it is alone."""
    together = operand.read(_FIRST)
    try:
        alone = [operand.read([position])[0] for position in _FIRST]
    except Refused as refused:
        raise RopeError(f"function takes several tokens, and not one alone: {refused}") from refused
    off = np.abs(together - alone).max(axis=1)
    if off.max() > _SAME:
        others = operand.read([_FILLER] * len(_FIRST))
        ignored = np.abs(others - together).max() < 1e-4
        what = "the function ignores positions" if ignored else "its place in the call counts too"
        raise RopeError(
            f"angles depend on more than positions: position {_FIRST[off.argmax()]} is turned "
            f"otherwise alone in a call than with others; {what}"
        )


def find_length_rule(operand: Operand) -> LengthRule | None:
    """Return how angles depend on the length of a call, None if they do not."""
    short = operand.read(_FIRST)
    for what, largest, counts_tokens in (
        ("the largest position of a call", 1 << 17, False),
        ("the number of tokens of a call", 1 << 13, True),
    ):

        def is_short(n: int, counts_tokens: bool = counts_tokens) -> bool:
            turns = _read_of_length(operand, list(_FIRST), n, counts_tokens=counts_tokens)
            return bool(np.abs(turns - short).max() <= _SAME)

        for longest in (largest, largest // 32, largest // 256):
            try:
                same = is_short(longest)
            except Refused:
                continue
            if same:
                break
            if not is_short(len(_FIRST) + 2):
                raise RopeError(f"angles depend on {what}, however short it is")
            trained = find_last(is_short, len(_FIRST) + 2, longest)
            fault = (
                f"angles depend on {what}: they change beyond {trained}, and keys that were cached "
                "before turn by the old ones"
            )
            return LengthRule(trained, counts_tokens, fault)
    return None


def find_last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number for which something holds, as it does for low and not for high."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def find_dynamic_ntk(
    operand: Operand, length: LengthRule, base: float, short: Floats
) -> DynamicNTK | None:
    """Return the rule by which frequencies change with the length, None if it is not dynamic NTK.

    ``short`` are the frequencies of a short call, of all r/2 pairs.
    """
    steps = [0, *(1 << k for k in range(9))]
    lengths = [2 * length.trained, 4 * length.trained]
    slowed = []
    for n in lengths:
        try:
            turns = _read_of_length(operand, steps, n, counts_tokens=length.counts_tokens)
        except Refused:
            return None
        slowest = abs(float(np.angle(turns[-1] / turns[0])[-1])) / steps[-1]
        # The base grows by g ** (r / (r - 2)), so the slowest pair is g times slower.
        slowed.append(short[-1] / slowest if slowest else np.inf)
    slope = (slowed[1] - slowed[0]) / (lengths[1] - lengths[0])
    for factor in _rules.rounded_numbers(slope * length.trained, 2e-2):
        rule = DynamicNTK(factor, length.trained)
        found = [rule.for_length(n).frequencies(base, 2 * len(short))[-1] for n in lengths]
        if np.allclose(found, short[-1] / np.array(slowed), rtol=2e-3, atol=0.0):
            return rule
    return None
