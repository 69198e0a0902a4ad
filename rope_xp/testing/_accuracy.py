"""Measure the error of a function by position, and find its cause."""

from typing import NamedTuple

import numpy as np

from rope_xp.rope import RoPE
from rope_xp.testing._angles import MeasuredAngles, find_last
from rope_xp.testing._box import BeyondLimit, CallRefused, Complex, Floats
from rope_xp.testing._pairs import RotatedArray
from rope_xp.testing._rounding import PRODUCT, find_cause

CONTEXTS = (128, 4096, 131_072, 1_048_576)  # context lengths for which errors are reported
_WRONG = 1e-2
_LARGEST = 1 << 20


class Accuracy(NamedTuple):
    error: dict[int, float]  # the maximum of cos and sin in each context; inf where it is rejected
    passes: int | None  # the first position that was tried with an error above 1e-2
    notes: tuple[str, ...]
    fault: str | None
    explained: bool  # whether the fault names the cause of the errors


class ArrayRotation(NamedTuple):
    """The measured rotation of one array, and the exact one."""

    rope: RoPE
    array: RotatedArray
    angles: MeasuredAngles
    frequencies: Floats  # exact ones, of the pairs that move
    measured: Floats  # frequencies of all pairs of the slice
    notes: list[str]
    faults: list[str]

    def measure(self, positions: Floats) -> tuple[Complex, Floats]:
        """Return the function's cos + i sin without what the faults state, and its errors."""
        turns = self.angles.normalize(self.array.read(positions.astype(int)))
        return turns, self.compute_errors(turns, positions)

    def compute_errors(self, turns: Complex, positions: Floats) -> Floats:
        """Return the errors of cos and sin, inf where they are not finite."""
        exact = np.multiply.outer(positions + self.angles.offset, self.frequencies)
        off = np.abs(turns - np.exp(1j * exact))
        return np.where(np.isfinite(off), off, np.inf)


def measure_accuracy(rotation: ArrayRotation) -> Accuracy:
    error: dict[int, float] = {}
    notes: tuple[str, ...] = ()
    tried: list[tuple[Floats, Complex, Floats]] = []
    for length in (1 << k for k in range(3, _LARGEST.bit_length())):
        # Even, odd, and of many bits: 257/512 has one bit at either end, which short formats drop.
        near = (length - k for k in (1, 2, 3, 5, 9))
        chosen = {length * 257 // 512 + 1, length * 5 // 8 + 1, *near}
        positions = np.array(sorted(p for p in chosen if p >= 0), float)
        try:
            tried.append((positions, *rotation.measure(positions)))
        except BeyondLimit:  # which says nothing about the function
            break
        except CallRefused as refused:
            last = find_last(lambda p: rotation.array.box.accepts([0, p]), 0, length)
            notes = (f"positions from {last + 1} on are rejected: {str(refused)[:160]}",)
            error |= {context: float("inf") for context in CONTEXTS if context >= length}
            break
        if length in CONTEXTS:
            error[length] = max(float(off.max()) for *_, off in tried)
    positions, turns, off = (np.concatenate(parts) for parts in zip(*tried, strict=True))
    wrong = positions[(off > _WRONG).any(axis=1)]
    passes = int(wrong[0]) if wrong.size else None
    shifted, factor = positions + rotation.angles.offset, rotation.angles.factor
    angles = np.abs(np.multiply.outer(shifted, rotation.frequencies))
    beyond = off > 2e-6 + 2 * rotation.array.box.eps + PRODUCT * angles
    fault, explained = None, True
    if beyond.any():
        scaled = np.asarray(factor * turns, complex)
        fault = find_cause(scaled, shifted, rotation.frequencies, factor, beyond)
        fault = fault or _find_substitute(rotation)
        first = int(positions[beyond.any(axis=1)][0])
        if not (fault or np.isfinite(turns[positions >= first]).all()):
            fault = f"results are not finite from position {first} on"
        explained = fault is not None
        fault = fault or (
            f"angles are off by up to {off[positions >= first].max():.2g} from position {first} "
            "on, more than float32 explains, and no known rounding explains it"
        )
    return Accuracy(error, passes, notes, fault, explained)


def _find_substitute(rotation: ArrayRotation) -> str | None:
    """Return which positions large ones are taken for, in words; None for none."""

    def is_right(position: int) -> bool:
        return bool(rotation.measure(np.array([0.0, position]))[1][1].max() < _WRONG)

    most = int(min(_LARGEST, rotation.array.box.limit))
    try:
        limit = 1 + find_last(is_right, 0, most)
        large = np.array([limit, limit + 1, min(limit + 77, most - 1), most - 1], float)
        turns, _ = rotation.measure(large)
    except CallRefused:
        return None
    substitutes = {
        f"positions from {limit} on are treated as {limit - 1}": large * 0.0 + (limit - 1),
        f"positions restart at 0 from {limit} on, where a table ends": large % limit,
        f"positions wrap around to -{limit} at {limit}": (large + limit) % (2 * limit) - limit,
    }
    errors = {c: rotation.compute_errors(turns, p).max() for c, p in substitutes.items()}
    return next((cause for cause, error in errors.items() if error < _WRONG), None)
