"""Assert that a function rotates as a given RoPE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rope_xp._arguments import fields
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.norm import QKNorm
from rope_xp.rope import RoPE
from rope_xp.testing._box import Floats, Function, read_host
from rope_xp.testing._compare import count_components, find_problems, list_differences
from rope_xp.testing._identify import LEAST, Identified, identify_box, read_limits
from rope_xp.testing._norm import Norm
from rope_xp.testing._open import open_boxes
from rope_xp.testing._slots import WrongSlotsError

_INEXACT = 1e-5  # of cos and sin: more than their own rounding
_POSITIONS = (*range(21), 100, 1023, 4097, 40_001, 131_071)


def assert_rotates(
    function: Function,
    rope: RoPE | None,
    head_dim: int,
    *,
    axes: str = "bhsd",
    positions: Sequence[int] | None = None,
    atol: float | None = None,
    tables: Function | None = None,
    like: Array | None = None,
    heads: int = 2,
    norm: QKNorm | None = None,
    slots: bool = False,
    max_tokens: int | None = None,
    seconds: float | None = None,
) -> None:
    """Check that a function rotates like a given RoPE.

    The function is called with up to 1031 random vectors, at positions in random order, with
    several batch entries and more heads in q than in k.

    Parameters
    ----------
    function, head_dim, axes, tables, like, heads
        See :func:`identify`.
    rope : RoPE or None
        The expected RoPE. Scaling that depends on length is fixed for one token. None for a layer
        without positions.
    positions : sequence of int, (tokens,) or (components, tokens), optional
        Positions to compare at; a single row is shifted for each component. No call has larger
        ones. Default: some up to 131071.
    atol : float, optional
        Largest error allowed, for standard normal inputs. Default: sixteen units of the dtype, plus
        the error of float32 angles.
    norm : QKNorm, optional
        The norm that the function applies before the rotation, with weights (head_dim,).
    slots : bool, default False
        Whether the function writes keys to a cache. It is ``function(q, k, positions, k_cache,
        slots)``: token i of all batch entries goes to ``k_cache[slots[i]]``, (heads, head_dim). It
        returns q rotated, and the cache if it is another array.
    max_tokens : int, optional
        Tokens of a call at most, of all batch entries, from 32. For kernels in an interpreter.
    seconds : float, optional
        If time is short, the call with 1031 tokens is left out, and the search for the cause of an
        error ends.

    Raises
    ------
    AssertionError
        If an error is larger, with the largest one and what the function does instead. Also if an
        argument is overwritten, but another array is returned.
    RopeError, TypeError
        As in :func:`identify`. Also if rope does not fit head_dim.

    Examples
    --------
    >>> import rope_xp
    >>> from rope_xp.testing import assert_rotates
    >>> def kernel(x, positions):
    ...     return rope_xp.RoPE().rotate(x, positions, axes="bhsd")
    >>> assert_rotates(kernel, rope_xp.RoPE(layout="interleaved"), 8)
    >>> assert_rotates(kernel, rope_xp.RoPE(layout="half"), 8)
    Traceback (most recent call last):
    AssertionError: the function does not rotate as RoPE(base=10000.0, layout='half', ...
    - layout is 'interleaved', and not 'half'
    """
    if rope is not None:
        fields.check_rope(rope, RoPE, "rope")
    most, deadline = read_limits(max_tokens, seconds)
    limit = math.inf if positions is None else float(np.max(positions)) + 1
    positions = _POSITIONS if positions is None else positions
    try:
        box = next(
            open_boxes(
                *(function, head_dim, axes, tables, like, heads, count_components(rope)),
                norm=None if norm is None else _read_norm(norm, head_dim),
                slots=slots,
                max_tokens=most,
                limit=min(limit, getattr(function, "rope_xp_limit", math.inf)),
            )
        )
        problems = find_problems(box, rope, positions, atol, whole=True, deadline=deadline)
        problem = next(problems, None)
    except WrongSlotsError as error:
        raise AssertionError(f"the function does not rotate as {rope}: {error}") from error
    if problem is None:
        return
    reasons = []
    if problem.kind != "norm" and box.limit >= LEAST:  # a norm's problem says the cause
        try:
            found = identify_box(replace(box, deadline=deadline))
            reasons = _list_reasons(found, rope, head_dim)
        except (RopeError, WrongSlotsError) as error:
            reasons = [str(error)]
    lines = "".join(f"\n- {reason}" for reason in reasons)
    raise AssertionError(f"the function does not rotate as {rope}: {problem.message}{lines}")


def _list_reasons(found: Identified, rope: RoPE | None, head_dim: int) -> list[str]:
    """Return why a function that was identified does not rotate as rope, in sentences."""
    if rope is None:
        return [f"it rotates as {found.rope}, in a layer without positions"]
    reasons = [*list_differences(found.rope, rope, head_dim), *found.faults, *found.notes]
    errors = {context: e for context, e in found.error.items() if e < math.inf}
    context, error = max(errors.items(), key=lambda item: item[1], default=(0, 0.0))
    if not reasons and error > _INEXACT:
        product = f"cos and sin are off by up to {error:.2g} below position {context}"
        return [f"{product}, as with angles that are products in float32"]
    return reasons or ["the cause is unknown"]


def _read_norm(norm: QKNorm, head_dim: int) -> Norm:
    """Return a norm with its weights in host memory."""
    if not isinstance(norm, QKNorm):
        raise TypeError(f"norm must be a rope_xp.QKNorm; got {type(norm).__name__}")
    scales: dict[str, Floats | float] = {"q": 1.0, "k": 1.0}
    for name, weight in (("q", norm.q_weight), ("k", norm.k_weight)):
        if weight is None:
            continue
        scales[name] = scale = read_host(weight) + norm.offset
        if scale.shape != (head_dim,):
            raise RopeError(f"norm.{name}_weight must have shape ({head_dim},); got {scale.shape}")
        if not scale.all():
            raise RopeError(f"norm.{name}_weight + offset must not be 0, which no result shows")
    return Norm(scales, norm.eps, norm.offset)
