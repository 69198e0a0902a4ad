"""Identify the RoPE of a black box."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._accuracy import ArrayRotation, measure_accuracy
from rope_xp.testing._angles import measure_angles
from rope_xp.testing._box import BlackBox, Function, open_box
from rope_xp.testing._compare import Problem, find_problems, spread_positions
from rope_xp.testing._differences import fix_length, list_differences
from rope_xp.testing._fit import fit_angles
from rope_xp.testing._lengths import (
    check_positions,
    find_dynamic_ntk,
    find_length_dependence,
)
from rope_xp.testing._pairs import RotatedArray, find_rotated_arrays
from rope_xp.testing._rules import compute_frequencies


@dataclass(frozen=True)
class Identified:
    """The result of :func:`identify`.

    Parameters
    ----------
    rope : RoPE
        The RoPE that agrees, apart from what ``faults`` says.
    error : dict of int to float
        The largest error of cos and sin of positions below 128, 4096, 131072 and 1048576, against
        exact angles of ``rope``; inf where the function takes no such positions. What the faults
        say of sign and offset is not counted.
    passes : int, optional
        The first position that was tried whose error is above 1e-2; None where there is none.
    frequencies : tuple of float, length r/2
        As measured, in radians per position; 0 where a pair stands still.
    notes : tuple of str
        What else there is to know, in sentences.
    faults : tuple of str
        What is wrong or would be wrong for most models, in sentences; empty for correct code.
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
) -> Identified:
    """Return which RoPE a function is, and what is wrong with it.

    Unit vectors at a few positions give the pairs, the angles of powers of two the frequencies, and
    large positions the errors. Random calls of several lengths and batches show whether every token
    is rotated by its own position. Some rules have the same frequencies, and the simplest is named.

    Parameters
    ----------
    function : callable
        ``function(q, k, positions)``, ``function(x, positions)``, or with ``tables``
        ``function(q, k, cos, sin)`` or ``function(x, cos, sin)``. Of numpy, torch, jax or cupy. It
        returns what it was given, turned; with q, k and v, all three.
    head_dim : int
        Components of a head.
    axes : str, default "bhsd"
        Names of the axes of its arrays, as for :func:`rope_xp.apply`: b, h, s and d in any order.
    tables : callable, optional
        ``tables(positions)``, which returns what follows the arrays: (cos, sin) or one table.
    like : array, optional
        Of the library, device and dtype to ask with. Default: of numpy, torch, jax and cupy, as far
        as they are imported, the first of which the function takes arrays and returns them, in
        float32.
    heads : int, default 2
        Heads of the arrays.
    components : int, optional
        Of a position: 1, or more, which then come first. None: 1, or 2 or 3 if 1 is refused.

    Returns
    -------
    Identified
        The RoPE, its errors, and what to know.

    Raises
    ------
    RopeError
        If the function is no RoPE, with what it is instead; if it takes no call that was tried.
    TypeError
        If an argument is of the wrong type.

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
    check_arguments(function, head_dim, axes, heads)
    return identify_box(open_box(function, head_dim, axes, tables, like, heads, components))


def check_arguments(function: Any, head_dim: int, axes: str, heads: int) -> None:
    """Check the arguments that :func:`identify` and :func:`assert_rotates` share."""
    if not callable(function):
        raise TypeError(f"function must be callable; got {type(function).__name__}")
    numbers.check_positive_int("head_dim", head_dim)
    numbers.check_positive_int("heads", heads)
    if not isinstance(axes, str) or sorted(axes) != sorted("bhsd"):
        raise RopeError(
            f"axes must name b, h, s and d, each once, such as 'bhsd' or 'bshd'; got {axes!r}"
        )


def identify_box(box: BlackBox) -> Identified:
    """Return which RoPE a black box is."""
    arrays = find_rotated_arrays(box)
    rotated = [array for array in arrays if array is not None]
    if not rotated:
        raise RopeError("function turns nothing: its result is its argument, at every position")
    rotated = [array for array in rotated if array.name != "v"] or rotated
    rotations = [_identify_array(array) for array in rotated]
    first = rotations[0]
    accuracy = measure_accuracy(first)
    faults = [*first.faults, *_compare_arrays(arrays, rotations)]
    # The cause of errors in angles explains those of frequencies too.
    faults += [fault for fault in (accuracy.fault or first.fit.rounding,) if fault]
    problems: list[Problem] = []
    if not (accuracy.explained and faults):  # a known fault makes all results wrong
        last = next(p for p in (1023, 127, 7) if box.accepts([0, p]))
        positions = spread_positions(range(last + 1), box.components)
        problems += find_problems(box, fix_length(first.rope, box.head_dim), positions)
    wrong = [problem.message for problem in problems if problem.kind == "wrong"]
    if wrong and not faults:
        raise RopeError(f"function is no rotation of each token by its own position: {wrong[0]}")
    faults += [problem.message for problem in problems if problem.kind != "refused"]
    refused = [problem.message for problem in problems if problem.kind == "refused"]
    return Identified(
        first.rope,
        accuracy.error,
        accuracy.passes,
        tuple(first.fit.series.values.tolist()),
        (*first.fit.notes, *accuracy.notes, *refused),
        tuple(dict.fromkeys(faults)),
    )


def _identify_array(array: RotatedArray) -> ArrayRotation:
    """Return the rotation of one array."""
    head_dim, pairs, name = array.box.head_dim, array.pairs, array.name
    check_positions(array)
    length = find_length_dependence(array)
    last = 1 << 16
    if length is not None and not length.counts_tokens:
        last = max(4, length.trained - 1)
    angles = measure_angles(array, last)
    faults: list[str] = []
    if angles.sign < 0:
        faults.append(f"{name} turns by the negative angle; if that is meant, it is RoPE.unrotate")
    if angles.swapped:
        faults.append(f"cos and sin are swapped: {name} is turned by 90 degrees at position 0")
    if angles.offset:
        faults.append(
            f"positions are off by {angles.offset:+g}: position p is turned as p {angles.offset:+g}"
        )
    if abs(pairs.standing - 1.0) > 1e-4 and pairs.rotary_dim < head_dim:
        faults.append(f"components that do not turn are multiplied by {pairs.standing:.6g}")
    fit = fit_angles(pairs, angles, head_dim)
    scaling, rotary_dim = fit.scaling, fit.series.rotary_dim
    if length is not None:
        faults.append(length.fault)
        if scaling is None:
            short = compute_frequencies(fit.base, None, rotary_dim)
            scaling = find_dynamic_ntk(array, length, fit.base, short)
    rope = RoPE(
        base=fit.base,
        layout=pairs.layout,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        rotary_offset=pairs.rotary_offset,
        scaling=scaling,
        position_axes=fit.series.position_axes,
    )
    exact = fix_length(rope, head_dim).frequencies(head_dim)[pairs.indices]
    if math.isclose(rope.attention_factor, angles.factor, rel_tol=1e-3):
        angles = replace(angles, factor=rope.attention_factor)
    return ArrayRotation(rope, array, angles, exact, fit, tuple(faults))


def _compare_arrays(arrays: list[RotatedArray | None], rotations: list[ArrayRotation]) -> list[str]:
    """Return what differs between q, k and v, in sentences."""
    faults = ["v is turned as well"] if len(arrays) > 2 and arrays[2] else []
    if len(arrays) > 1:
        names = zip("qk", arrays, strict=False)
        faults += [f"{name} is not turned" for name, array in names if array is None]
    if len(rotations) < 2:
        return faults
    q, k = rotations
    faults += [fault for fault in k.faults if fault not in q.faults]
    if q.angles.sign != k.angles.sign:
        faults.append("q and k turn against each other")
    return faults + [
        f"q and k are turned differently: of k, {difference}"
        for difference in list_differences(k.rope, q.rope, q.array.box.head_dim)
    ]
