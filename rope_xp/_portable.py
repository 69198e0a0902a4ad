"""The path that every library has: look the angles up, rotate, write."""

from collections.abc import Callable

from rope_xp import _angles, _axes, _rotate
from rope_xp._contract import Angles, Call, Difference, Given
from rope_xp._typing import Array

NAME = "portable"


def cos_sin(call: Call, angles: Angles) -> tuple[Array, Array]:
    """Return cos and sin, (batch..., tokens, r/2)."""
    if isinstance(angles, Given):
        return angles.cos, angles.sin
    if isinstance(angles, Difference):
        new = _angles.cos_sin(call.backend, angles.new)
        made = _angles.difference(call.backend, new, _angles.cos_sin(call.backend, angles.old))
    else:
        made = _angles.cos_sin(call.backend, angles)
    return call.backend.computed_once(*made)


def run(call: Call, rotate: Callable[..., Array] = _rotate.rotate) -> tuple[Array, ...]:
    """Return the rotated arrays, written to ``call.out`` if it is given.

    ``rotate`` stands for :func:`rope_xp._rotate.rotate`, where a compiler wants it in other words.
    """
    results = []
    for i, x in enumerate(call.arrays):
        if i < len(call.angles):  # else q and k share their angles
            cos, sin = cos_sin(call, call.angles[i])
            cos = _axes.align(call.backend.xp, cos, call.axes)
            sin = _axes.align(call.backend.xp, sin, call.axes)
        results.append(
            rotate(
                call.backend.xp,
                x,
                cos,
                sin,
                layout=call.layout,
                offset=call.rotary_offset,
                inverse=call.inverse,
            )
        )
    if call.out is None:
        return tuple(results)
    for out, result in zip(call.out, results, strict=True):
        call.backend.write(out, result)
    return call.out
