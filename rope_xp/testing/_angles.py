"""Measure the angles of pairs, and whether they depend on more than a token's position."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.testing._box import CallRefused, Complex, Floats
from rope_xp.testing._pairs import Indices, RotatedArray, read_first

_FEW = (1, 2, 3, 5)
_FILLER = 6
_SAME = 1e-5
_FAR = 1000
_TOKENS = "the number of tokens of a call"
_LONGEST = {"the largest position of a call": 1 << 17, _TOKENS: 1 << 13}
_EXACT = 5e-7  # error of cos and sin in float32: a rounding or two


class LengthDependence(NamedTuple):
    """How angles depend on the length of a call: its largest position, or its token count."""

    quantity: str
    trained: int  # up to which length angles are those of a short call

    def read(self, array: RotatedArray, positions: Sequence[int], n: int) -> Complex:
        """Return the turns of positions in a call of length n."""
        padding = [_FILLER] * (n - len(positions)) if self.quantity == _TOKENS else [n - 1]
        return array.read([*positions, *padding])[: len(positions)]


def check_positions(array: RotatedArray) -> None:
    """Check that the tokens of a short call are rotated as alone."""
    together = array.read(_FEW)
    try:
        alone = [array.read([position])[0] for position in _FEW]
    except CallRefused as refused:
        raise RopeError(f"function takes several tokens, but not one: {refused}") from refused
    off = np.abs(together - alone).max(axis=1)
    if off.max() > _SAME:
        others = array.read([_FILLER] * len(_FEW))
        ignored = np.abs(others - together).max() < 1e-4
        cause = "the function ignores positions" if ignored else "its index in the call matters too"
        raise RopeError(
            f"angles depend on more than positions: position {_FEW[off.argmax()]} is turned "
            f"differently with and without other tokens; {cause}"
        )


def find_length_dependence(array: RotatedArray) -> LengthDependence | None:
    """Return how angles depend on the length of a call, None if they do not."""
    short, least = array.read(_FEW), len(_FEW) + 2
    for quantity, largest in _LONGEST.items():
        length = LengthDependence(quantity, least)

        def is_short(n: int, length: LengthDependence = length) -> bool:
            return bool(np.abs(length.read(array, _FEW, n) - short).max() <= _SAME)

        most = max(array.box.count_affordable(), least + 1) if quantity == _TOKENS else math.inf
        for longest in (int(min(n, most)) for n in (largest, largest // 32, largest // 256)):
            try:
                if is_short(longest):
                    break
            except CallRefused:
                continue
            if not is_short(least):
                raise RopeError(f"angles depend on {quantity}, even in short calls")
            return length._replace(trained=find_last(is_short, least, longest))
    return None


def find_last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number at which a predicate holds, by bisection of low and high."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class MeasuredAngles(NamedTuple):
    frequencies: Floats  # radians per position of the pairs that move, not negative
    uncertainty: Floats  # relative, of each frequency
    sign: int
    offset: float  # added to positions
    swapped: bool  # whether cos and sin are taken for each other
    factor: float  # of cos and sin
    position_axes: Indices | None  # the component that each pair reads; None where there is one

    def normalize(self, turns: Complex) -> Complex:
        """Return cos + i sin without the factor, the negative sign and the swap."""
        turns = turns.imag + 1j * turns.real if self.swapped else turns
        return np.asarray((np.conj(turns) if self.sign < 0 else turns) / self.factor)


def measure_angles(array: RotatedArray, last: int) -> MeasuredAngles:
    """Return the angles of one array up to ``last``; raise if they do not follow positions."""
    name = array.name
    exponents = range(max(last, 4).bit_length(), 2, -1)
    powers = ([0, *(1 << k for k in range(exponent))] for exponent in exponents)
    steps, turns = read_first(array.read, powers)
    sizes = np.abs(turns)
    factor = float(np.median(sizes))
    fault = f"the function is not a rotation: {name} is multiplied by numbers that depend on the"
    if np.ptp(sizes, axis=0).max() > 0.02 * factor:
        shown = f"{sizes[0].min():.4g} at 0 and {sizes[-1].min():.4g} far off"
        raise RopeError(f"{fault} position, {shown}, as in xPos")
    if np.ptp(np.median(sizes, axis=0)) > 0.02 * factor:
        raise RopeError(f"{fault} pair")
    # Rounded tables scatter the sizes of turns.
    noise = max(_EXACT, 2 * float(np.abs(sizes / factor - 1.0).max()), 2 * array.box.eps)
    signed, last_steps = _follow_angles(steps, turns, min(4 * noise, 0.02))
    backwards = signed < -noise / last_steps
    if (signed > noise / last_steps).any() and backwards.any():
        raise RopeError(
            f"function is no rotary embedding: pairs {np.flatnonzero(backwards)[:4].tolist()} ... "
            f"of {name} turn backwards, and the others forwards; or they turn by more than half a "
            "turn from one position to the next, which integers cannot show"
        )
    sign = -1 if backwards.any() else 1
    offset, swapped = _find_offset(np.angle(turns[0]), signed, noise, name)
    frequencies = sign * signed
    uncertainty = noise / (last_steps * np.maximum(frequencies, 1e-12))
    sign = -sign if swapped else sign  # sin + i cos turns the other way
    axes = _find_position_axes(array, signed, noise)
    return MeasuredAngles(frequencies, uncertainty, sign, offset, swapped, factor, axes)


def _follow_angles(steps: list[int], turns: Complex, tolerance: float) -> tuple[Floats, Floats]:
    """Return signed frequencies, and the step up to which each was followed."""
    relative = np.angle(turns / turns[0])
    frequencies = relative[1].copy()
    last_steps = np.ones_like(frequencies)
    followed = np.ones(len(frequencies), bool)
    for step, angle in zip(steps[2:], relative[2:], strict=True):
        expected = frequencies * step
        off = np.angle(np.exp(1j * (angle - expected)))
        # The last step doubles its error, this one adds its own: more is no rounding.
        followed &= np.abs(off) < tolerance
        frequencies = np.where(followed, (expected + off) / step, frequencies)
        last_steps = np.where(followed, step, last_steps)
    return frequencies, last_steps


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
