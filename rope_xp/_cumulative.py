"""Cumulative angles: sums of steps without whole turns."""

import math
from typing import Any

import numpy as np

from rope_xp._arguments import checks, parse
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import turns
from rope_xp.positions._sequences import parse_ends


def cumulative_angles(
    steps: Any, axis: int, *, start: Any = None, cu_seqlens: Any = None, return_state: bool = False
) -> Any:
    """Return cumulative sums of angles without whole turns, exact at any length.

    Parameters
    ----------
    steps : array
        Radians from each token to the next, below 2**16. Others, and NaN, are a RopeError in numpy
        and on torch's CPU; elsewhere their sums are NaN.
    axis : int
        The axis of tokens.
    start : array, optional
        The state of earlier tokens. An angle in radians is rounded, and no state: add it to the
        first step.
    cu_seqlens : array or sequence, (sequences + 1,), optional
        Sum each packed sequence from 0, or from its entry of start.
    return_state : bool, default False
        Whether to return the state too. Sums in chunks then have the bits of the whole.

    Returns
    -------
    angles : array
        From -pi to pi, with the shape of steps, in float64 for float64 steps, else in float32.
        Differentiable with respect to steps in torch, jax and mlx.
    state : array
        int64 with the shape of steps, but one token, or one for each sequence. Without float64, as
        in jax by default: int32, with a last axis of two words.

    Notes
    -----
    Steps become integers, a turn is 2**64, and their sums wrap around. The error of n steps is
    below n * 2**-61 turns, 2.8e-12 radians for a million, and half a bit of the dtype. Libraries
    with float64 have the same bits, others 1.5e-9 radians more of an error.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> steps = np.full((4, 1), 3.0)
    >>> angles, state = rope_xp.cumulative_angles(steps[:3], 0, return_state=True)
    >>> angles[:, 0].round(4).tolist()
    [3.0, -0.2832, 2.7168]
    >>> rope_xp.cumulative_angles(steps[3:], 0, start=state).round(4).tolist()
    [[-0.5664]]
    """
    backend = find.by_type.get(type(steps)) or find.require_backend(steps, "steps")
    summed = backend.accumulate_angles(steps, axis, start, cu_seqlens, return_state)
    if summed is not None:
        return summed
    xp, shape, double = backend.xp, tuple(steps.shape), backend.has_float64(steps)
    is_float64 = checks.check_float(backend, "steps", steps) == "float64"
    dtype = xp.float64 if is_float64 else xp.float32
    numbers.check_known("steps", shape)
    if not -len(shape) <= numbers.check_int("axis", axis) < len(shape) or not shape[axis]:
        raise RopeError(f"axis = {axis} is no axis of tokens in steps, whose shape is {shape}")
    axis %= len(shape)
    ends, host_ends = _read_ends(backend, steps, axis, cu_seqlens)
    words = _read_state(backend, steps, axis, start, ends)
    constant = backend.stop_gradient(steps)
    summed = None
    if double and host_ends is not None:
        wide = xp.astype(constant, dtype, copy=False)
        summed = backend.accumulate_angles(wide, axis, start, host_ends, True)
    if summed is None:
        inside = xp.abs(xp.astype(constant, dtype, copy=False)) < turns.LARGEST
        valid = xp.all(inside, axis=axis, keepdims=True)
        is_valid = backend.host_view(valid)
        if is_valid is not None and not is_valid.all():
            raise RopeError(f"steps must be finite, and below {turns.LARGEST:g} radians")
        constant = xp.where(inside, constant, xp.zeros_like(constant))
        new = turns.convert_steps(backend, constant, double)
        sums, words = _restart(backend, turns.accumulate(backend, new, axis), axis, words, ends)
        angles = xp.astype(turns.convert_to_radians(xp, sums), dtype, copy=False)
        angles = xp.where(valid, angles, xp.full_like(angles, math.nan))
    else:
        angles, *words = summed

    def sum_floats(x: Array) -> Array:
        # Sums of packed sequences are differences.
        x = xp.astype(x, xp.float64 if double and ends is not None else dtype, copy=False)
        ((total,), _) = _restart(backend, turns.accumulate(backend, (x,), axis), axis, None, ends)
        return xp.astype(total, dtype, copy=False)

    angles = backend.add_derivative(angles, sum_floats, steps)
    if not return_state:
        return angles
    return angles, words[0] if double else xp.stack(words, axis=-1)


def _read_ends(
    backend: Backend, steps: Array, axis: int, cu_seqlens: Any
) -> tuple[Array | None, np.ndarray | None]:
    """Return cumulative lengths as an array of the library, and those in host memory."""
    tokens = steps.shape[axis]
    if cu_seqlens is None:
        return None, np.array([0, tokens])
    owner, ends = parse.read_operand(backend, "steps", steps, "cu_seqlens", cu_seqlens)
    ends = parse_ends(ends)[1]
    host = owner.host_view(ends)
    if host is not None and parse_ends(host)[1][-1] != tokens:
        raise RopeError(f"cu_seqlens ends with {host[-1]}, and steps has {tokens} tokens")
    return ends if owner is backend else backend.asarray(ends, backend.device(steps)), host


def _read_state(
    backend: Backend, steps: Array, axis: int, start: Any, ends: Array | None
) -> turns.Words | None:
    if start is None:
        return None
    checks.check_library(backend, "steps", steps, "start", start)
    count = 1 if ends is None else ends.shape[0] - 1
    shape = (*steps.shape[:axis], count, *steps.shape[axis + 1 :])
    double = backend.has_float64(steps)
    shape, dtype = (shape, "int64") if double else ((*shape, 2), "int32")
    if backend.dtype_name(start) != dtype or tuple(start.shape) != shape:
        raise RopeError(
            f"start is {checks.describe(backend, start)}; pass the state of earlier tokens, "
            f"{dtype} of shape {shape}"
        )
    return (start,) if double else (start[..., 0], start[..., 1])


def _restart(
    backend: Backend, sums: turns.Words, axis: int, start: turns.Words | None, ends: Array | None
) -> tuple[turns.Words, turns.Words]:
    """Return the sums of each sequence from its start on, and their last ones."""
    xp, shape, lead = backend.xp, sums[0].shape, (slice(None),) * axis
    if ends is None:
        sums = sums if start is None else turns.add(xp, sums, start)
        return sums, tuple([x[(*lead, slice(shape[axis] - 1, None), ...)] for x in sums])
    last = xp.where(ends > 0, ends - 1, xp.zeros_like(ends))
    is_empty = xp.reshape(ends == 0, (*(1,) * axis, -1, *(1,) * (len(shape) - axis - 1)))
    before = [xp.take(x, last, axis=axis) for x in sums]
    before = [xp.where(is_empty, xp.zeros_like(x), x) for x in before]
    offset = turns.negate(xp, tuple([x[(*lead, slice(-1), ...)] for x in before]))
    offset = offset if start is None else turns.add(xp, offset, start)
    state = turns.add(xp, tuple([x[(*lead, slice(1, None), ...)] for x in before]), offset)
    tokens = xp.arange(shape[axis], dtype=ends.dtype, device=backend.device(ends))
    sequence = xp.searchsorted(ends[1:-1], tokens, side="right")
    return turns.add(xp, sums, tuple([xp.take(x, sequence, axis=axis) for x in offset])), state
