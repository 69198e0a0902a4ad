"""From turned vectors to the angles of pairs: frequencies, sign, offset, attention factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rope_xp._contract.errors import RopeError
from rope_xp.testing._box import EPS, TOKENS, Box, Floats, Refused
from rope_xp.testing._pairs import Pairs

_FAR = 1000
_EXACT = 5e-7
"""Of cos and sin in float32: a rounding or two."""


@dataclass(frozen=True)
class Angles:
    """What turns the pairs of one array."""

    frequencies: Floats
    """Radians per position of the pairs that move, not negative."""
    uncertain: Floats
    """How far each may be off, relative."""
    sign: int
    offset: float
    """What is added to positions."""
    swapped: bool
    """Whether cos and sin are taken for each other."""
    factor: float
    """What cos and sin are multiplied by."""
    scatter: float
    """How far the factor is off at most, relative: large where tables are of few bits."""
    position_axes: tuple[int, ...] | None

    def exact(self, frequencies: Floats, positions: Floats) -> Floats:
        """Return cos + i sin of exact angles, (tokens, pairs), with what was found of the rest."""
        turns = np.exp(1j * self.sign * np.multiply.outer(positions + self.offset, frequencies))
        turned = turns.imag + 1j * turns.real if self.swapped else turns
        return np.asarray(self.factor * turned)


def read(box: Box, pairs: Pairs, array: int, positions: object) -> Floats:
    """Return cos + i sin of each pair at each position, (tokens, pairs), as a function has them."""
    x = np.zeros((1, box.heads, box.head_dim))
    ins, outs = np.array(pairs.ins), np.array(pairs.outs)
    x[..., ins[:, 0]] = 1.0
    turned = box.turned(x, positions)[array][0, 0]
    return np.asarray(turned[:, outs[:, 0]] + 1j * turned[:, outs[:, 1]])


def find(box: Box, pairs: Pairs, array: int, most: int = 1 << 16) -> Angles:
    """Return the angles of one array, from positions up to ``most``.

    Raises
    ------
    RopeError
        If they are not proportional to positions, with what they are instead.
    """
    name = "qkv"[array]
    steps, turns = _doubled(box, pairs, array, most)
    sizes = np.abs(turns)
    factor = float(np.median(sizes))
    _check_sizes(sizes, factor, name)
    scatter = float(np.abs(sizes / factor - 1.0).max())
    noise = max(_EXACT, 2 * scatter, 2 * EPS[box.dtype])
    signed, reach = _frequencies(steps, turns, min(4 * noise, 0.02))
    sign = _sign(signed, noise / reach, name)
    frequencies = sign * signed
    uncertain = noise / (reach * np.maximum(frequencies, 1e-12))
    phases = np.angle(turns[0])
    offset, swapped = _offset(phases, signed, noise, name)
    if swapped:  # sin + i cos turns the other way
        sign = -sign
    axes = _position_axes(box, pairs, array, signed, noise)
    return Angles(frequencies, uncertain, sign, offset, swapped, factor, scatter, axes)


def check_places(box: Box, pairs: Pairs, array: int) -> None:
    """Check that angles follow positions, and not the place of a token.

    Raises
    ------
    RopeError
        If they do not.
    """
    same = read(box, pairs, array, [7] * TOKENS)
    if np.abs(same - same[0]).max() > 1e-4:
        counted = read(box, pairs, array, list(range(TOKENS)))
        ignores = np.abs(same - counted).max() < 1e-4
        what = "the function ignores positions" if ignores else "the place counts too"
        raise RopeError(
            f"angles depend on more than positions: tokens that all have position 7 "
            f"are turned differently, by their place in the call; {what}"
        )


def _doubled(box: Box, pairs: Pairs, array: int, most: int) -> tuple[list[int], Floats]:
    """Return 0 and powers of two that the function takes, with what it makes of them."""
    for last in range(max(most, 4).bit_length() - 1, 1, -1):
        steps = [0, *(1 << k for k in range(last + 1))]
        try:
            turns = read(box, pairs, array, steps)
        except Refused:
            continue
        if np.isfinite(turns).all():
            return steps, turns
    raise RopeError("function takes no positions 0, 1, 2 and 4 together, or makes them not finite")


def _check_sizes(sizes: Floats, factor: float, name: str) -> None:
    by_position = np.ptp(sizes, axis=0).max()
    if by_position > 0.02 * factor:
        last = sizes[-1].min()
        raise RopeError(
            f"function is no rotation: the norm of {name} is multiplied by numbers that depend on "
            f"the position, {sizes[0].min():.4g} at 0 and {last:.4g} far off, as in xPos"
        )
    if np.ptp(np.median(sizes, axis=0)) > 0.02 * factor:
        raise RopeError(
            f"function is no rotation: the pairs of {name} are made longer by different factors"
        )


def _frequencies(steps: list[int], turns: Floats, close: float) -> tuple[Floats, Floats]:
    """Return signed frequencies, and the step up to which each was followed."""
    relative = np.angle(turns / turns[0])
    found = relative[1].copy()
    reach = np.ones_like(found)
    going = np.ones(len(found), bool)
    for step, angle in zip(steps[2:], relative[2:], strict=True):
        expected = found * step
        off = np.angle(np.exp(1j * (angle - expected)))
        # Twice the error of the last step and that of this; what is off by more is no longer right.
        going &= np.abs(off) < close
        found = np.where(going, (expected + off) / step, found)
        reach = np.where(going, step, reach)
    return found, reach


def _sign(signed: Floats, noise: Floats, name: str) -> int:
    positive, negative = (signed > noise).any(), (signed < -noise).any()
    if positive and negative:
        backwards = np.flatnonzero(signed < -noise)[:4].tolist()
        raise RopeError(
            f"function is no rotary embedding: pairs {backwards} ... of {name} turn backwards, "
            "and the others forwards; or they turn by more than half a turn from one position to "
            "the next, which integers cannot tell"
        )
    return -1 if negative else 1


def _offset(phases: Floats, signed: Floats, noise: float, name: str) -> tuple[float, bool]:
    """Return what is added to positions, and whether cos and sin are swapped."""
    if np.abs(phases).max() < max(1e-4, 4 * noise):
        return 0.0, False
    swapped = bool(np.abs(np.angle(np.exp(1j * (phases - np.pi / 2)))).max() < 1e-3)
    if swapped:
        return 0.0, True
    # Slow pairs tell the whole offset, fast ones its exact value.
    slow = np.abs(signed) < 0.1
    for guess in {np.median(phases[slow] / signed[slow])} if slow.any() else {1.0, -1.0}:
        offset = round(2 * guess) / 2
        if offset and np.abs(np.angle(np.exp(1j * (phases - signed * offset)))).max() < 1e-2:
            return float(offset), False
    raise RopeError(
        f"function is no rotary embedding: {name} is turned at position 0 already, by "
        f"{np.abs(phases).max():.3g} radians, and no offset of positions explains it. Angles may "
        "be learned"
    )


def _position_axes(
    box: Box, pairs: Pairs, array: int, signed: Floats, noise: float
) -> tuple[int, ...] | None:
    """Return the component that each pair reads; None where positions have one."""
    if box.components == 1:
        return None
    found = np.zeros(len(signed), int)
    total = np.zeros(len(signed), int)
    far = _FAR if box.takes(np.zeros((1, box.heads, box.head_dim)), [0, _FAR]) else 1
    for component in range(box.components):
        at = np.zeros((box.components, 3), int)
        at[component, 1:] = 1, far
        turns = read(box, pairs, array, at)
        slow = np.abs(signed) < 1e-3
        there = np.where(slow, far * signed, signed)
        turned = np.where(slow, turns[2], turns[1]) / turns[0]
        moves = np.abs(turned - np.exp(1j * there)) < np.abs(turned - 1.0) / 4
        found[moves] = component
        total += moves
    seen = np.abs(np.where(np.abs(signed) < 1e-3, far * signed, signed)) > 8 * noise
    if (total[seen] != 1).any():
        odd = np.flatnonzero(seen & (total != 1))[:4].tolist()
        raise RopeError(
            f"angles of pairs {odd} ... do not follow one component of the position each; RoPE "
            "has one for each pair, position_axes"
        )
    return tuple(found.tolist())
