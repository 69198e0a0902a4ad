"""Which RoPE a black box is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array
from rope_xp.rope import RoPE
from rope_xp.scaling import Scaling, YaRN
from rope_xp.testing import _angles, _box, _lengths, _limits, _pairs, _rounding, _rules
from rope_xp.testing._angles import Angles
from rope_xp.testing._box import EPS, Box, Floats, Function
from rope_xp.testing._pairs import Pairs
from rope_xp.testing._rules import Measured, Series


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
    measured = _series(main.pairs, main.angles, rotary_dim).values
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
    fit = _fit(pairs, angles, box.head_dim)
    rule = fit.rule
    if length is not None:
        faults.append(length.fault)
        if rule is None:
            short = _rules.frequencies(fit.base, None, fit.rotary_dim)
            rule = _lengths.dynamic(box, pairs, array, length, fit.base, short)
    rope = RoPE(
        base=fit.base,
        layout=pairs.layout,
        rotary_dim=None if fit.rotary_dim == box.head_dim else fit.rotary_dim,
        rotary_offset=pairs.rotary_offset,
        scaling=rule,
        position_axes=_filled(angles.position_axes, pairs),
    )
    short_rule = None if rule is None else rule.for_length(1)
    exact = _rules.frequencies(fit.base, short_rule, fit.rotary_dim)[list(pairs.places)]
    if math.isclose(rope.attention_factor, angles.factor, rel_tol=1e-3):
        angles = replace(angles, factor=rope.attention_factor)
    return Turned(rope, pairs, angles, exact, fit.notes, tuple(faults), fit.rounded)


def _filled(axes: tuple[int, ...] | None, pairs: Pairs) -> tuple[int, ...] | None:
    if axes is None:
        return None
    filled = [0] * (pairs.rotary_dim // 2)
    for place, component in zip(pairs.places, axes, strict=True):
        filled[place] = component
    return tuple(filled)


@dataclass(frozen=True)
class Fit:
    """What base and rule frequencies follow."""

    base: float
    rule: Scaling | None
    rotary_dim: int
    notes: tuple[str, ...] = ()
    rounded: str | None = None
    """Which rounding lies between the rule's frequencies and those that were found."""


def _series(pairs: Pairs, angles: Angles, rotary_dim: int) -> Series:
    values = np.zeros(rotary_dim // 2)
    uncertain = np.zeros(rotary_dim // 2)
    values[list(pairs.places)] = angles.frequencies
    uncertain[list(pairs.places)] = angles.uncertain
    return Series(values, uncertain, _filled(angles.position_axes, pairs), angles.factor)


def _fit(pairs: Pairs, angles: Angles, head_dim: int) -> Fit:
    r = pairs.rotary_dim
    series = _series(pairs, angles, r)
    found, rounded = _rules.nearest(series, plain=True), None
    if found is None and pairs.layout != "half" and r < head_dim and not pairs.rotary_offset:
        # A slice of neighbours cannot be told from a head whose other pairs stand still.
        found = _rules.nearest(_series(pairs, angles, head_dim), plain=True)
        r = r if found is None else head_dim
    if found is None:
        found = _rules.nearest(series)
    if found is None:
        found, rounded = _of_rounded(series)
    if found is None:
        measured = Measured(tuple(series.values.tolist()), angles.factor)
        note = "frequencies follow no rule that is known here; they may be learned"
        return Fit(10000.0, measured, r, (note,))
    base, rule = found
    factor = 1.0 if rule is None else rule.attention_factor
    if abs(factor - angles.factor) > 1e-3 * factor:
        exact = tuple(_rules.frequencies(base, rule, r).tolist())
        note = f"cos and sin are multiplied by {angles.factor:.6g}, which no rule gives here"
        return Fit(base, Measured(exact, angles.factor), r, (note,), rounded)
    return Fit(base, rule, r, tuple(_remarks(base, rule)), rounded)


def _of_rounded(series: Series) -> tuple[tuple[float, Scaling | None] | None, str | None]:
    """Return base and rule of frequencies that were rounded."""
    for name, to in _rounding.NARROW.items():
        loose = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "TF32": 2.0**-10}[name]
        found = _rules.nearest(series, loose)
        if found is None:
            continue
        exact = to(_rules.frequencies(*found, series.rotary_dim))
        bound = (2e-6 + series.uncertain) * exact + 1e-12
        if np.mean(np.abs(series.values - exact) <= bound) > 0.9:
            return found, f"frequencies are rounded to {name}"
    return None, None


def _remarks(base: float, rule: Scaling | None) -> list[str]:
    if rule is None:
        return []
    name = type(rule).__name__
    factor = getattr(rule, "factor", None)
    by = "" if factor is None else f" with factor {factor:g}"
    said = [f"frequencies are those of {name}{by} and base {base:g}"]
    if isinstance(rule, YaRN):
        usual = YaRN(rule.factor, rule.original_max_position_embeddings).attention_factor
        if abs(usual - rule.attention_factor) > 1e-4:
            said.append(
                f"cos and sin are multiplied by {rule.attention_factor:g}, and by {usual:.6g} in "
                "YaRN's paper: right where mscale or attention_factor of the configuration says so"
            )
    return said


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


def differences(found: RoPE, expected: RoPE, head_dim: int) -> list[str]:
    """Return in what two ropes differ that turn heads of head_dim, in words."""
    said = []
    for name in ("layout", "rotary_dim", "rotary_offset", "position_axes"):
        one, other = (_told(rope, name, head_dim) for rope in (found, expected))
        if one != other:
            said.append(f"{name} is {one!r}, and not {other!r}")
    short = [fixed(rope, head_dim) for rope in (found, expected)]
    one, other = (rope.frequencies(head_dim) for rope in short)
    if one.shape != other.shape or not np.allclose(one, other, rtol=1e-5, atol=1e-12):
        if found.base != expected.base:
            said.append(f"base is {found.base:g}, and not {expected.base:g}")
        if found.scaling != expected.scaling or found.base == expected.base:
            said.append(f"scaling is {found.scaling}, and not {expected.scaling}")
    if not math.isclose(found.attention_factor, expected.attention_factor, rel_tol=1e-4):
        said.append(
            f"attention factor is {found.attention_factor:.6g}, and not "
            f"{expected.attention_factor:.6g}"
        )
    return said


def _told(rope: RoPE, name: str, head_dim: int) -> Any:
    """Return a field with its defaults filled in."""
    value = getattr(rope, name)
    if name == "rotary_dim":
        return value or head_dim
    return value % head_dim if name == "rotary_offset" else value


def fixed(rope: RoPE, head_dim: int) -> RoPE:
    """Return a rope for short contexts, whose slice is that of a head."""
    return replace(rope.for_length(1), rotary_dim=rope.rotary_dim or head_dim)
