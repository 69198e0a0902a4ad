"""Which RoPE a black box is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing import _angles, _box, _fit, _lengths, _limits, _pairs, _rules
from rope_xp.testing._angles import Angles
from rope_xp.testing._box import EPS, Box, Floats, Function
from rope_xp.testing._differences import differences
from rope_xp.testing._pairs import Pairs


@dataclass(frozen=True)
class Identified:
    """What :func:`identify` found.

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


@dataclass(frozen=True)
class Turned:
    """What is done to one array."""

    rope: RoPE
    pairs: Pairs
    angles: Angles
    exact: Floats
    """The frequencies of the pairs that move, after the rule."""
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    rounded: str | None
    """How the frequencies were rounded."""


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

    The function is asked for unit vectors at a few positions, which tell the pairs; for the angles
    of powers of two, which tell the frequencies; and for large positions.

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
        If the function is no RoPE, with what it is instead; if it takes nothing that was tried.
    TypeError
        If an argument is of the wrong type.

    Notes
    -----
    What cannot be told apart: NTK from the base that it makes; a rule from the frequencies that it
    happens to make; the three numbers of Llama3, of which only quotients count, so that
    ``low_freq_factor`` is set to 1; lengths of YaRN with the same rounded ramp; pairs that stand
    still at the end of a slice from components beyond it; and whether cos and sin were rounded or
    the result was.

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
    box = _box.opened(function, head_dim, axes, tables, like, heads, components)
    made, _ = _pairs.matrices(box)
    eps = EPS[box.dtype]
    found = [_pairs.find(matrix, "qkv"[i], eps) for i, matrix in enumerate(made)]
    first = next((i for i, pairs in enumerate(found) if pairs is not None), None)
    if first is None:
        raise RopeError("function turns nothing: its result is its argument, at every position")
    turned = {i: _turned(box, pairs, i) for i, pairs in enumerate(found[:2]) if pairs is not None}
    main = turned[first]
    faults = [*main.faults, *_between(found, turned, head_dim)]
    limits = _limits.find(box, main.pairs, first, main.angles, main.exact)
    # What explains the errors of angles explains those of frequencies too.
    faults += limits.faults or ([main.rounded] if main.rounded else [])
    rotary_dim = main.rope.rotary_dim or head_dim
    measured = _fit.series_of(main.pairs, main.angles, rotary_dim).values
    return Identified(
        main.rope,
        limits.error,
        limits.passes,
        tuple(measured.tolist()),
        (*main.notes, *limits.notes),
        tuple(dict.fromkeys(faults)),
    )


def check_arguments(function: Any, head_dim: int, axes: str, heads: int) -> None:
    """Check what :func:`identify` and :func:`assert_rotates` are both given."""
    if not callable(function):
        raise TypeError(f"function must be callable; got {type(function).__name__}")
    numbers.check_positive_int("head_dim", head_dim)
    numbers.check_positive_int("heads", heads)
    if not isinstance(axes, str) or sorted(axes) != sorted("bhsd"):
        raise RopeError(
            f"axes must name b, h, s and d, each once, such as 'bhsd' or 'bshd'; got {axes!r}"
        )


def _turned(box: Box, pairs: Pairs, array: int) -> Turned:
    """Return what is done to one array."""
    _angles.check_places(box, pairs, array)
    length = _lengths.find(box, pairs, array)
    most = 1 << 16
    if length is not None:
        most = max(4, length.trained - 1 if not length.tokens else most)
    angles = _angles.find(box, pairs, array, most)
    faults: list[str] = []
    name = "qkv"[array]
    if angles.sign < 0:
        faults.append(f"{name} turns by the negative angle; if that is meant, it is RoPE.unrotate")
    if angles.swapped:
        faults.append(f"cos and sin are swapped: {name} is turned by 90 degrees at position 0")
    if angles.offset:
        faults.append(
            f"positions are off by {angles.offset:+g}: position p is turned as p {angles.offset:+g}"
        )
    if abs(pairs.standing - 1.0) > 1e-4:
        what = f"components that do not turn are multiplied by {pairs.standing:.6g}"
        faults += [what] if pairs.rotary_dim < box.head_dim else []
    found = _fit.fit(pairs, angles, box.head_dim)
    rule = found.rule
    if length is not None:
        faults.append(length.fault)
        if rule is None:
            short = _rules.frequencies(found.base, None, found.rotary_dim)
            rule = _lengths.dynamic(box, pairs, array, length, found.base, short)
    rope = RoPE(
        base=found.base,
        layout=pairs.layout,
        rotary_dim=None if found.rotary_dim == box.head_dim else found.rotary_dim,
        rotary_offset=pairs.rotary_offset,
        scaling=rule,
        position_axes=_fit.filled(angles.position_axes, pairs),
    )
    short_rule = None if rule is None else rule.for_length(1)
    exact = _rules.frequencies(found.base, short_rule, found.rotary_dim)[list(pairs.places)]
    if math.isclose(rope.attention_factor, angles.factor, rel_tol=1e-3):
        angles = replace(angles, factor=rope.attention_factor)
    return Turned(rope, pairs, angles, exact, found.notes, tuple(faults), found.rounded)


def _between(found: list[Pairs | None], turned: dict[int, Turned], head_dim: int) -> list[str]:
    """Return what differs between q, k and v."""
    said = []
    if len(found) > 2 and found[2] is not None:
        said.append("v is turned as well")
    if len(found) > 1:
        said += [f"{'qk'[i]} is not turned" for i in (0, 1) if found[i] is None]
    if len(turned) < 2:
        return said
    q, k = turned[0], turned[1]
    said += [each for each in k.faults if each not in q.faults]
    if q.angles.sign != k.angles.sign:
        said.append("q and k turn against each other")
    said += [
        f"q and k are turned differently: of k, {each}"
        for each in differences(k.rope, q.rope, head_dim)
    ]
    return said
