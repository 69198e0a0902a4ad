"""Identify the RoPE of a function."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._accuracy import ArrayRotation, measure_accuracy
from rope_xp.testing._angles import check_positions, find_length_dependence, measure_angles
from rope_xp.testing._box import BlackBox, CallRefused, Function
from rope_xp.testing._compare import find_problems, fix_length, list_differences
from rope_xp.testing._fit import fit_angles
from rope_xp.testing._open import open_boxes
from rope_xp.testing._pairs import RotatedArray, find_rotated_arrays

_FEWEST = 32
"""Tokens of the calls that no check can do without."""
LEAST = 8
"""Positions from 0 that it needs."""


@dataclass(frozen=True)
class Identified:
    """The result of :func:`~rope_xp.testing.identify`.

    Parameters
    ----------
    rope : RoPE
        The RoPE that the function computes, apart from its ``faults``.
    error : dict of int to float
        The largest error of cos and sin below positions 128, 4096, 131072 and 1048576, without
        faults of sign and offset; inf if the function rejects such positions. Those that a
        convention's table does not reach are missing.
    passes : int, optional
        The first tested position with an error above 1e-2; None if there is none.
    frequencies : tuple of float, length r/2
        Measured values in radians per position; 0 for a pair that does not turn.
    notes : tuple of str
        Sentences about what is unusual but may be right.
    faults : tuple of str
        Sentences about what is wrong, at least for most models; empty for correct code.
    """

    rope: RoPE
    error: dict[int, float]
    passes: int | None
    frequencies: tuple[float, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]


def identify(
    function: Function,
    head_dim: int,
    *,
    axes: str = "bhsd",
    tables: Function | None = None,
    like: Array | None = None,
    heads: int = 2,
    components: int | None = None,
    max_tokens: int | None = None,
    seconds: float | None = None,
) -> Identified:
    """Return which RoPE a function computes, and what is wrong with it.

    If several scalings have these frequencies, the simplest one is returned.

    Parameters
    ----------
    function : callable
        ``function(q, k, positions)``, ``function(x, positions)``, or with ``tables``
        ``function(q, k, cos, sin)`` or ``function(x, cos, sin)``. It returns its arrays rotated;
        with q, k and v, all three.
    head_dim : int
        Components of a head.
    axes : str, default "bhsd"
        Names of the array axes, as in :func:`rope_xp.apply`: b, h, s and d in any order.
    tables : callable, optional
        ``tables(positions)`` returns the arguments after the arrays: (cos, sin) or one table.
    like : array, optional
        An array with the library, device and dtype to call the function with. Default: float32 from
        the first imported library of numpy, torch, jax and cupy that the function accepts.
    heads : int, default 2
        Heads of the arrays.
    components : int, optional
        Components of a position, on a leading axis if more than 1. None: try 1, then 2 and 3.
    max_tokens : int, optional
        Tokens of a call at most, of all batch entries, from 32. For kernels in an interpreter.
    seconds : float, optional
        Time after which no call begins; RopeError then.

    Returns
    -------
    Identified
        The RoPE, its errors and its faults.

    Raises
    ------
    RopeError
        If the function computes no RoPE; the message says what it does instead. Also if all calls
        fail.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.testing import identify
    >>> def rotate(x, positions):
    ...     angles = positions[:, None] * 500000.0 ** (-np.arange(32) / 32)
    ...     cos, sin = np.cos(angles), np.sin(angles)
    ...     a, b = x[..., :32], x[..., 32:]
    ...     return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    >>> found = identify(rotate, 64)
    >>> found.rope.base, found.rope.layout, found.faults
    (500000.0, 'half', ())
    """
    most, deadline = read_limits(max_tokens, seconds)
    limit = getattr(function, "rope_xp_limit", math.inf)  # of a convention's table
    errors = []
    # Some take positions of several counts of components, and are rotations with one alone.
    for box in open_boxes(
        *(function, head_dim, axes, tables, like, heads, components),
        max_tokens=most,
        deadline=deadline,
        limit=limit,
    ):
        try:
            return identify_box(box)
        except RopeError as error:
            errors.append(error)
    raise errors[0]


def read_limits(max_tokens: int | None, seconds: float | None) -> tuple[float, float]:
    """Return the tokens of a call, and when seconds from now are over, by time.monotonic."""
    most = math.inf if max_tokens is None else numbers.check_positive_int("max_tokens", max_tokens)
    if most < _FEWEST:
        raise RopeError(f"max_tokens must be at least {_FEWEST}; got {max_tokens}")
    left = math.inf if seconds is None else float(numbers.check_positive("seconds", seconds))
    return most, time.monotonic() + left


def identify_box(box: BlackBox) -> Identified:
    """Return which RoPE a function computes; RopeError if it is none, or rejects calls."""
    try:
        return _identify_box(box)
    except CallRefused as refused:
        raise RopeError(f"function takes some calls, but not all: {refused}") from refused


def _identify_box(box: BlackBox) -> Identified:
    arrays = find_rotated_arrays(box)
    rotated = [array for array in arrays if array]
    if not rotated:
        raise RopeError(_explain_rest(box))
    rotated = [array for array in rotated if array.name != "v"] or rotated
    rotations = [_identify_array(array) for array in rotated]
    first, accuracy = rotations[0], measure_accuracy(rotations[0])
    faults = [*_list_faults(box, arrays, rotations), *filter(None, [accuracy.fault])]
    faults += _list_unread_components(box, first.rope)
    problems = []
    if not (accuracy.explained and faults):  # a known fault makes all results wrong
        last = next(p for p in (1023, 127, 7) if box.accepts([0, p]))
        problems = list(find_problems(box, first.rope, range(last + 1), deadline=box.deadline))
    wrong = [problem.message for problem in problems if problem.kind == "wrong"]
    if wrong and not faults:
        fault = "the function is not a rotation of each token by its own position"
        raise RopeError(f"{fault}: {wrong[0]}")
    faults += [problem.message for problem in problems if problem.kind != "rejected"]
    rejected = [problem.message for problem in problems if problem.kind == "rejected"]
    return Identified(
        first.rope,
        accuracy.error,
        accuracy.passes,
        tuple(first.measured.tolist()),
        (*first.notes, *accuracy.notes, *rejected),
        tuple(dict.fromkeys(faults)),
    )


def _list_faults(
    box: BlackBox, arrays: list[RotatedArray | None], rotations: list[ArrayRotation]
) -> Iterator[str]:
    """Yield the faults of each array, and of k where it is not rotated as q is."""
    for rotation in rotations:
        yield from rotation.faults
    if any(arrays[2:]):
        yield "v is rotated too"
    named = zip("qk", arrays, strict=False) if len(arrays) > 1 else ()
    yield from (f"{name} is not turned" for name, array in named if array is None)
    first, *others = rotations
    for k in others:
        if k.angles.sign != first.angles.sign:
            yield "q and k turn in opposite directions"
        differences = list_differences(k.rope, first.rope, box.head_dim)
        yield from (f"q and k are rotated differently: for k, {text}" for text in differences)


def _list_unread_components(box: BlackBox, rope: RoPE) -> Iterator[str]:
    read = sorted(set(rope.position_axes or (0,)))
    if len(read) < box.components:
        shown = f"component {', '.join(map(str, read))} alone"
        yield f"of {box.components} components of a position it reads {shown}"


def _explain_rest(box: BlackBox) -> str:
    """Return why a function does not rotate tokens whose call begins with position 0."""
    x = np.random.default_rng(0).standard_normal((1, box.heads, box.head_dim))
    alone, together = (np.stack(box.rotate(x, p)) for p in ([7], [7, 2, 1, 0]))
    if np.abs(alone - x[:, :, None]).max() < 1e-4:
        return "function rotates nothing: at every position it returns its argument"
    if np.abs(together - alone).max() < 1e-4:
        return "function rotates all tokens of a call by the position of the first one"
    return "function rotates a token by another one's position"


def _identify_array(array: RotatedArray) -> ArrayRotation:
    head_dim, name, standing = array.box.head_dim, array.name, array.standing
    check_positions(array)
    length = find_length_dependence(array)
    last = 1 << 16
    if length is not None and "position" in length.quantity:
        last = max(4, length.trained - 1)
    angles = measure_angles(array, last)
    rope, series, notes = fit_angles(array, angles, length)
    shift = f"{angles.offset:+g}"
    checks = {
        f"{name} turns by the negative angle; if intended, it is RoPE.unrotate": angles.sign < 0,
        f"cos and sin are swapped: {name} is rotated by 90 degrees at position 0": angles.swapped,
        f"positions are off by {shift}: position p is rotated as p {shift}": angles.offset != 0,
        f"components that do not turn are multiplied by {standing:.6g}": (
            abs(standing - 1.0) > 1e-4 and array.rotary_dim < head_dim
        ),
    }
    faults = [fault for fault, is_wrong in checks.items() if is_wrong]
    if length is not None:
        fault = f"angles depend on {length.quantity}: they change beyond {length.trained}, and "
        faults.append(fault + "keys cached before keep the old ones")
    exact = fix_length(rope, head_dim).frequencies(head_dim)[array.indices]
    if math.isclose(rope.attention_factor, angles.factor, rel_tol=1e-3):
        angles = angles._replace(factor=rope.attention_factor)
    return ArrayRotation(rope, array, angles, exact, series.values, notes, faults)
