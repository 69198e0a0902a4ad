"""Whether angles depend on more of a call than the position of a token, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rope_xp._contract.errors import RopeError
from rope_xp.scaling import DynamicNTK
from rope_xp.testing import _angles, _rules
from rope_xp.testing._box import Box, Floats, Refused
from rope_xp.testing._pairs import Pairs

_FEW = (1, 2, 3, 5)
_TOKENS = 8192
_LARGEST = 1 << 17
_SAME = 1e-5

Ask = Callable[[int], Floats]


@dataclass(frozen=True)
class Length:
    """What angles depend on beside positions."""

    of: str
    """In words."""
    trained: int
    """Up to which length they are those of a short call."""
    tokens: bool
    """Whether tokens count, and not the largest position."""

    @property
    def fault(self) -> str:
        """What to tell."""
        return (
            f"angles depend on {self.of}: they change beyond {self.trained}, and keys that were "
            "cached before turn by the old ones"
        )


def find(box: Box, pairs: Pairs, array: int) -> Length | None:
    """Return what angles depend on beside positions, None if on nothing.

    Raises
    ------
    RopeError
        If they depend on where a token stands.
    """
    alone = _angles.read(box, pairs, array, _FEW)
    for row, position in zip(alone, _FEW, strict=True):
        single = _angles.read(box, pairs, array, [position])
        if not _alike(single[0], row):
            raise RopeError(
                f"angles depend on more than positions: position {position} is turned otherwise "
                "alone in a call than with others"
            )

    def farther(n: int) -> Floats:
        return _angles.read(box, pairs, array, [*_FEW, n - 1])[: len(_FEW)]

    def longer(n: int) -> Floats:
        return _angles.read(box, pairs, array, [*_FEW, *[6] * (n - len(_FEW))])[: len(_FEW)]

    for ask, last, of, tokens in (
        (farther, _LARGEST, "the largest position of a call", False),
        (longer, _TOKENS, "the number of tokens of a call", True),
    ):
        most = _taken(ask, last)
        if most and not _alike(ask(most), alone):
            low, high = len(_FEW) + 2, most
            if not _alike(ask(low), alone):
                raise RopeError(f"angles depend on {of}, however short it is")
            while high - low > 1:
                middle = (low + high) // 2
                same = _alike(ask(middle), alone)
                low, high = (middle, high) if same else (low, middle)
            return Length(of, low, tokens)
    return None


def _taken(ask: Ask, last: int) -> int:
    """Return the largest length, of some, that a function takes."""
    for n in (last, last // 32, last // 256):
        try:
            ask(n)
        except Refused:
            continue
        return n
    return 0


def _alike(a: Floats, b: Floats) -> bool:
    return bool(np.abs(a - b).max() <= _SAME)


def dynamic(
    box: Box, pairs: Pairs, array: int, length: Length, base: float, short: Floats
) -> DynamicNTK | None:
    """Return the rule by which frequencies change with the length, None if it is not dynamic NTK.

    ``short`` are the frequencies of a short call, of all r/2 pairs.
    """
    r = 2 * len(short)
    steps = [0, *(1 << k for k in range(9)), 256]
    shares, lengths = [], [2 * length.trained, 4 * length.trained]
    for n in lengths:
        more = [6] * (n - len(steps)) if length.tokens else [n - 1]
        try:
            turns = _angles.read(box, pairs, array, [*steps, *more])[: len(steps)]
        except Refused:
            return None
        last = abs(float(np.angle(turns[-1] / turns[0])[-1])) / 256
        slowed = short[-1] / last if last else np.inf
        # The base grows by g ** (r / (r - 2)), so the slowest pair is g times slower.
        shares.append(slowed)
    steep = (shares[1] - shares[0]) / (lengths[1] - lengths[0])
    for factor in _rules.rounded_numbers(steep * length.trained, 2e-2):
        rule = DynamicNTK(factor, length.trained)
        found = [rule.for_length(n).frequencies(base, r)[-1] for n in lengths]
        told = [short[-1] / share for share in shares]
        if np.allclose(found, told, rtol=2e-3, atol=0.0):
            return rule
    return None
