"""Measure the angles of pairs: frequencies, sign, offset and attention factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.testing._box import EPS, CallRefused, Complex, Floats
from rope_xp.testing._pairs import Indices, RotatedArray

_FAR = 1000
_EXACT = 5e-7
"""Error of cos and sin in float32: a rounding or two."""


@dataclass(frozen=True)
class MeasuredAngles:
    """The angles of the pairs of one array."""

    frequencies: Floats
    """Radians per position of the pairs that move, not negative."""
    uncertainty: Floats
    """Relative, of each frequency."""
    sign: int
    offset: float
    """What is added to positions."""
    swapped: bool
    """Whether cos and sin are taken for each other."""
    factor: float
    """What cos and sin are multiplied by."""
    position_axes: Indices | None
    """The component of positions that each pair reads; None where positions have one."""

    def normalize(self, turns: Complex) -> Complex:
        """Return cos + i sin without the factor, the negative sign and the swap."""
        turns = turns.imag + 1j * turns.real if self.swapped else turns
        return np.asarray((np.conj(turns) if self.sign < 0 else turns) / self.factor)


def measure_angles(array: RotatedArray, last: int) -> MeasuredAngles:
    """Return the angles of one array up to ``last``; raise if they do not follow positions."""
    name = array.name
    steps, turns = _read_powers_of_two(array, last)
    sizes = np.abs(turns)
    factor = float(np.median(sizes))
    _check_sizes(sizes, factor, name)
    # Rounded tables scatter the sizes of turns.
    noise = max(_EXACT, 2 * float(np.abs(sizes / factor - 1.0).max()), 2 * EPS[array.box.dtype])
    signed, reach = _follow_angles(steps, turns, min(4 * noise, 0.02))
    sign = _find_sign(signed, noise / reach, name)
    offset, swapped = _find_offset(np.angle(turns[0]), signed, noise, name)
    frequencies = sign * signed
    return MeasuredAngles(
        frequencies,
        uncertainty=noise / (reach * np.maximum(frequencies, 1e-12)),
        sign=-sign if swapped else sign,  # sin + i cos turns the other way
        offset=offset,
        swapped=swapped,
        factor=factor,
        position_axes=_find_position_axes(array, signed, noise),
    )


def _read_powers_of_two(array: RotatedArray, last: int) -> tuple[list[int], Complex]:
    """Return 0 and the powers of two that the function takes, with their turns."""
    for exponent in range(max(last, 4).bit_length() - 1, 1, -1):
        steps = [0, *(1 << k for k in range(exponent + 1))]
        try:
            turns = array.read(steps)
        except CallRefused:
            continue
        if np.isfinite(turns).all():
            return steps, turns
    raise RopeError("function takes no positions 0, 1, 2 and 4 together, or makes them not finite")


def _check_sizes(sizes: Floats, factor: float, name: str) -> None:
    if np.ptp(sizes, axis=0).max() > 0.02 * factor:
        raise RopeError(
            f"function is no rotation: the norm of {name} is multiplied by numbers that depend on "
            f"the position, {sizes[0].min():.4g} at 0 and {sizes[-1].min():.4g} far off, as in xPos"
        )
    if np.ptp(np.median(sizes, axis=0)) > 0.02 * factor:
        raise RopeError(
            f"function is no rotation: the pairs of {name} are made longer by different factors"
        )


def _follow_angles(steps: list[int], turns: Complex, tolerance: float) -> tuple[Floats, Floats]:
    """Return signed frequencies, and the step up to which each was followed."""
    relative = np.angle(turns / turns[0])
    frequencies = relative[1].copy()
    reach = np.ones_like(frequencies)
    followed = np.ones(len(frequencies), bool)
    for step, angle in zip(steps[2:], relative[2:], strict=True):
        expected = frequencies * step
        off = np.angle(np.exp(1j * (angle - expected)))
        # The last step doubles its error, this one adds its own: more is no rounding.
        followed &= np.abs(off) < tolerance
        frequencies = np.where(followed, (expected + off) / step, frequencies)
        reach = np.where(followed, step, reach)
    return frequencies, reach


def _find_sign(signed: Floats, noise: Floats, name: str) -> int:
    backwards = signed < -noise
    if (signed > noise).any() and backwards.any():
        raise RopeError(
            f"function is no rotary embedding: pairs {np.flatnonzero(backwards)[:4].tolist()} ... "
            f"of {name} turn backwards, and the others forwards; or they turn by more than half a "
            "turn from one position to the next, which integers cannot tell"
        )
    return -1 if backwards.any() else 1


def _find_offset(phases: Floats, signed: Floats, noise: float, name: str) -> tuple[float, bool]:
    """Return what is added to positions, and whether cos and sin are swapped."""

    def is_phase(expected: Floats | float, tolerance: float) -> bool:
        return bool(np.abs(np.angle(np.exp(1j * (phases - expected)))).max() < tolerance)

    if is_phase(0.0, max(1e-4, 4 * noise)):
        return 0.0, False
    if is_phase(np.pi / 2, 1e-3):
        return 0.0, True
    # Slow pairs show the whole offset, fast ones its exact value.
    slow = np.abs(signed) < 0.1
    for guess in {np.median(phases[slow] / signed[slow])} if slow.any() else {1.0, -1.0}:
        offset = round(2 * guess) / 2
        if offset and is_phase(signed * offset, 1e-2):
            return float(offset), False
    raise RopeError(
        f"function is no rotary embedding: {name} is turned at position 0 already, by "
        f"{np.abs(phases).max():.3g} radians, and no offset of positions explains it. Angles may "
        "be learned"
    )


def _find_position_axes(array: RotatedArray, signed: Floats, noise: float) -> Indices | None:
    """Return the component that each pair reads; None where positions have one."""
    components = array.box.components
    if components == 1:
        return None
    far = _FAR if array.box.accepts([0, _FAR]) else 1
    slow = np.abs(signed) < 1e-3
    step = np.where(slow, far, 1)
    moves = np.zeros((components, len(signed)), bool)
    for component in range(components):
        positions = np.zeros((components, 3), int)
        positions[component, 1:] = 1, far
        turns = array.read(positions)
        turn = np.where(slow, turns[2], turns[1]) / turns[0]
        moves[component] = np.abs(turn - np.exp(1j * step * signed)) < np.abs(turn - 1.0) / 4
    unclear = (moves.sum(axis=0) != 1) & (np.abs(step * signed) > 8 * noise)
    if unclear.any():
        raise RopeError(
            f"angles of pairs {np.flatnonzero(unclear)[:4].tolist()} ... do not follow one "
            "component of the position each; RoPE has one for each pair, position_axes"
        )
    return np.asarray(moves.argmax(axis=0))
