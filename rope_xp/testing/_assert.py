"""A check for tests: whether a function rotates as a RoPE does, and how it differs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rope_xp._arguments import fields
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing import _box
from rope_xp.testing._box import EPS, Box, Floats, Function, Refused
from rope_xp.testing._differences import differences, fixed
from rope_xp.testing._identify import check_arguments, identify

_POSITIONS = (0, 1, 2, 7, 100, 1023, 4097, 40_001, 131_071)
# A product in float32 of a position and a frequency that is good to a few units.
_PRODUCT = 1e-6
_TOKENS = 300


def assert_rotates(
    function: Function,
    rope: RoPE,
    head_dim: int,
    *,
    axes: str = "bhsd",
    positions: Sequence[int] = _POSITIONS,
    atol: float | None = None,
    tables: Function | None = None,
    like: Array | None = None,
    heads: int = 2,
) -> None:
    """Check that a function rotates as a RoPE does; tell how it differs if not.

    Parameters
    ----------
    function : callable
        As for :func:`identify`.
    rope : RoPE
        What it must do. A rule that depends on length is taken for one token.
    head_dim : int
        Components of a head.
    axes : str, default "bhsd"
        Names of the axes of its arrays: b, h, s and d in any order.
    positions : sequence of int, (tokens,) or (components, tokens), optional
        Where to compare; one line for several components is shifted for each. Default: some from
        0 to 131071. The first are asked for alone too, and among 300 tokens.
    atol : float, optional
        What results may be off by, for arrays of standard normal numbers. Default: sixteen units
        of the dtype, and what a product of float32 makes of angles at these positions.
    tables, like, heads
        As for :func:`identify`.

    Raises
    ------
    AssertionError
        If a result is off by more, with the largest difference and what the function is instead.
    RopeError
        If the function takes nothing that was tried, or rope does not fit head_dim.
    TypeError
        If an argument is of the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> from rope_xp.testing import assert_rotates
    >>> def kernel(x, positions):  # of pairs (i, i + 4)
    ...     angles = positions[:, None] * 10000.0 ** (-np.arange(4) / 4)
    ...     cos, sin = np.cos(angles), np.sin(angles)
    ...     a, b = x[..., :4], x[..., 4:]
    ...     return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    >>> assert_rotates(kernel, rope_xp.RoPE(layout="half"), 8)
    >>> assert_rotates(kernel, rope_xp.RoPE(layout="interleaved"), 8)
    Traceback (most recent call last):
    AssertionError: the function does not rotate as RoPE(base=10000.0, layout='interleaved', ...
    - layout is 'half', and not 'interleaved'
    """
    fields.check_rope(rope, RoPE, "rope")
    check_arguments(function, head_dim, axes, heads)
    wanted = fixed(rope, head_dim)
    wanted.frequencies(head_dim)  # which tells if they do not fit
    components = 1 if rope.position_axes is None else max(rope.position_axes) + 1
    box = _box.opened(function, head_dim, axes, tables, like, heads, components)
    every = np.asarray(positions)
    if components > 1 and every.ndim == 1:  # each has others, so that they are told apart
        every = np.stack([np.roll(every, c) for c in range(components)])
    few = every[..., : _box.FEW]
    filled = np.concatenate([few, np.repeat(few[..., :1], _TOKENS - few.shape[-1], -1)], -1)
    sets = [every, every[..., :1], every[..., -1:], filled]
    problems = list(dict.fromkeys(filter(None, (_off(box, wanted, at, atol) for at in sets))))
    if not problems:
        return
    said = _explained(function, rope, head_dim, axes, tables, like, heads, components)
    lines = "".join(f"\n- {each}" for each in said or ["nothing that is known here explains it"])
    raise AssertionError(f"the function does not rotate as {rope}: {problems[0]}{lines}")


def _off(box: Box, rope: RoPE, at: np.ndarray, atol: float | None) -> str | None:
    """Return how far a function is off at positions, None if it is not."""
    x = np.random.default_rng(7).standard_normal((1, box.heads, box.head_dim))
    x = np.round(x * 8) / 8  # which every dtype holds
    try:
        found = box.turned(x, at)
    except Refused as refused:
        return f"positions {at[..., :8].tolist()} are refused: {refused}"
    tokens = np.broadcast_to(x[:, :, None], found[0].shape)
    given = at if at.ndim == 1 else at[:, None]
    expected = np.asarray(rope.rotate(tokens, given, axes="bhsd"))
    bound = _bound(box, rope, np.abs(at).max(0) if at.ndim > 1 else np.abs(at))
    allowed = bound if atol is None else np.full_like(bound, atol)
    allowed = allowed * (1.0 if atol is not None else np.abs(x).max())
    for name, result in zip("qkv", found, strict=False):
        right = tokens if name == "v" else expected
        off = np.abs(result - right).max(axis=(0, 1, 3))
        if not (off <= allowed).all():
            token = int(np.nanargmax(np.where(np.isfinite(off), off - allowed, np.inf)))
            what = f"off by {off[token]:.3g}, and may be by {allowed[token]:.1g}"
            return f"{name} at position {at[..., token].tolist()} is {what}"
    return None


def _bound(box: Box, rope: RoPE, positions: np.ndarray) -> Floats:
    fastest = float(np.abs(rope.frequencies(box.head_dim)).max())
    factor = max(1.0, rope.attention_factor)
    return np.asarray(factor * (16 * EPS[box.dtype] + _PRODUCT * positions * fastest) + 1e-6)


def _explained(
    function: Function,
    rope: RoPE,
    head_dim: int,
    axes: str,
    tables: Function | None,
    like: Array | None,
    heads: int,
    components: int,
) -> list[str]:
    """Return what a function is, other than the RoPE."""
    try:
        found = identify(
            function, head_dim, axes=axes, tables=tables, like=like, heads=heads,
            components=components,
        )  # fmt: skip
    except RopeError as error:
        return [str(error)]
    return [*differences(found.rope, rope, head_dim), *found.faults, *found.notes]
