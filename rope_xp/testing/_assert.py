"""Assert in a test that a function rotates as a RoPE does."""

from __future__ import annotations

from collections.abc import Sequence

from rope_xp._arguments import fields
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._box import Function, open_box
from rope_xp.testing._compare import CALLS, find_problems, spread_positions
from rope_xp.testing._differences import fix_length, list_differences
from rope_xp.testing._identify import check_arguments, identify_box

_POSITIONS = (0, 1, 2, 7, 100, 1023, 4097, 40_001, 131_071)


def assert_rotates(
    function: Function,
    rope: RoPE,
    head_dim: int,
    *,
    axes: str = "bhsd",
    positions: Sequence[int] | None = None,
    atol: float | None = None,
    tables: Function | None = None,
    like: Array | None = None,
    heads: int = 2,
) -> None:
    """Check that a function rotates as a RoPE does.

    The function is called with random vectors and up to 1031 tokens, at positions in random order,
    with several batch entries and more heads of q than of k.

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
        0 to 131071.
    atol : float, optional
        What results may be off by, for arrays of standard normal numbers. Default: sixteen units
        of the dtype, and what a product of float32 makes of angles at these positions.
    tables, like, heads
        As for :func:`identify`.

    Raises
    ------
    AssertionError
        If a result is off by more, with the largest difference and what the function is instead;
        if an argument is written over, and another array returned.
    RopeError
        If the function takes no call that was tried, or rope does not fit head_dim.
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
    expected = fix_length(rope, head_dim)
    expected.frequencies(head_dim)  # raises if they do not fit
    components = 1 if rope.position_axes is None else max(rope.position_axes) + 1
    box = open_box(function, head_dim, axes, tables, like, heads, components)
    compared = spread_positions(_POSITIONS if positions is None else positions, components)
    calls = [(1, compared.shape[1]), *CALLS]
    problem = next(find_problems(box, expected, compared, calls, atol), None)
    if problem is None:
        return
    try:
        result = identify_box(box)
        reasons = [*list_differences(result.rope, rope, head_dim), *result.faults, *result.notes]
    except RopeError as error:
        reasons = [str(error)]
    reasons = reasons or ["nothing that is known here explains it"]
    lines = "".join(f"\n- {reason}" for reason in reasons)
    raise AssertionError(f"the function does not rotate as {rope}: {problem.message}{lines}")
