"""How far a function is right: its error by position, and what becomes of large positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rope_xp.testing import _angles, _rounding
from rope_xp.testing._angles import Angles
from rope_xp.testing._box import EPS, Box, Floats, Refused
from rope_xp.testing._pairs import Pairs
from rope_xp.testing._rounding import PRODUCT

AT = (128, 4096, 131_072, 1_048_576)
"""Tokens of the contexts up to which errors are told."""
WRONG = 1e-2
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What was found of one array."""

    error: dict[int, float]
    """The largest error of cos and sin below each position; inf where the function refuses."""
    passes: int | None
    """The first position that was tried with an error above 1e-2."""
    notes: tuple[str, ...]
    faults: tuple[str, ...]


def _around(last: int) -> list[int]:
    """Return some positions below a power of two: even, odd, and of many bits."""
    near = [last - k for k in (1, 2, 3, 5, 9)]
    # 257/512 of it has one bit at either end, which short formats drop.
    return sorted({p for p in (*near, last * 257 // 512 + 1, last * 5 // 8 + 1) if p >= 0})


def find(box: Box, pairs: Pairs, array: int, angles: Angles, exact: Floats) -> Limits:
    """Compare what a function does with exact angles of these frequencies."""
    error: dict[int, float] = {}
    passes: int | None = None
    worst = 0.0
    noise = 2e-6 + 2 * EPS[box.dtype]
    notes: tuple[str, ...] = ()
    seen: list[tuple[Floats, Floats]] = []
    for last in (1 << k for k in range(3, _LARGEST.bit_length())):
        positions = np.array(_around(last), float)
        try:
            turns = _angles.read(box, pairs, array, positions.astype(int))
        except Refused as refused:
            notes = (_refusing(box, pairs, array, last, str(refused)),)
            error |= {at: float("inf") for at in AT if at >= last}
            break
        seen.append((positions, turns))
        off = np.abs(turns - angles.exact(exact, positions)) / angles.factor
        off = np.where(np.isfinite(off), off, np.inf).max(axis=1)
        if passes is None and (off > WRONG).any():
            passes = int(positions[off > WRONG][0])
        worst = max(worst, float(off.max()))
        if last in AT:
            error[last] = worst
    positions = np.concatenate([p for p, _ in seen])
    turns = np.concatenate([t for _, t in seen])
    told = _cause(box, pairs, array, angles, exact, positions, turns, noise)
    return Limits(error, passes, notes, told)


def _cause(
    box: Box,
    pairs: Pairs,
    array: int,
    angles: Angles,
    exact: Floats,
    positions: Floats,
    turns: Floats,
    noise: float,
) -> tuple[str, ...]:
    """Return what explains errors beyond those of a product in float32; nothing without any."""
    off = np.abs(turns - angles.exact(exact, positions)) / angles.factor
    reach = np.abs(np.multiply.outer(positions + angles.offset, exact))
    beyond = ~(off <= noise + PRODUCT * reach)
    if not beyond.any():
        return ()
    shifted = positions + angles.offset
    plain = turns.imag + 1j * turns.real if angles.swapped else turns
    plain = np.conj(plain) if angles.sign < 0 else plain
    rounded = _rounding.cause(plain, shifted, exact, angles.factor, beyond)
    if rounded:
        return (rounded,)
    clamped = _clamped(box, pairs, array, angles, exact)
    if clamped:
        return (clamped,)
    where = int(positions[beyond.any(axis=1)][0])
    if not np.isfinite(turns[positions >= where]).all():
        return (f"results are not finite from position {where} on",)
    worst = float(off[positions >= where].max())
    what = f"angles are off by up to {worst:.2g} from position {where} on"
    return (f"{what}, by more than float32 explains and by no rounding that is known here",)


def _refusing(box: Box, pairs: Pairs, array: int, last: int, why: str) -> str:
    """Return from which position on a function takes none, and what it says."""

    def taken(position: int) -> bool:
        try:
            _angles.read(box, pairs, array, [0, position])
        except Refused:
            return False
        return True

    return f"positions from {_first(taken, last)} on are refused: {why[:160]}"


def _clamped(box: Box, pairs: Pairs, array: int, angles: Angles, exact: Floats) -> str | None:
    """Return what large positions are taken for, if that is another position."""

    def right(position: int) -> bool:
        at = np.array([0, position])
        turns = _angles.read(box, pairs, array, at)[1]
        expected = angles.exact(exact, at.astype(float))[1]
        return bool(np.abs(turns - expected).max() < WRONG * angles.factor)

    try:
        limit = _first(right, _LARGEST)
        beyond = np.array([limit, limit + 1, limit + 77, _LARGEST - 1])
        turns = _angles.read(box, pairs, array, beyond)
    except Refused:
        return None
    for taken, words in (
        (np.full(len(beyond), limit - 1), f"positions from {limit} on are taken for {limit - 1}"),
        (beyond % limit, f"positions start anew at {limit}, where a table ends"),
        ((beyond + limit) % (2 * limit) - limit, f"positions wrap around to -{limit} at {limit}"),
    ):
        expected = angles.exact(exact, taken.astype(float))
        if np.abs(turns - expected).max() < WRONG * angles.factor:
            return words
    return None


def _first(holds: Callable[[int], bool], last: int) -> int:
    """Return the first position at which something no longer holds, by halving."""
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
