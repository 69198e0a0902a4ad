"""RMSNorm of heads before their rotation (Zhang and Sennrich, arXiv 1910.07467, eq. 4).

    x * w * f, where w = weight + offset and f = 1 / sqrt(mean(x**2) + eps)

A rotation is linear, so the factor f of a row is multiplied last. Squares are summed in lanes,
component i of each part of a row in lane i % LANES, and lanes in a tree. So numpy, torch and
kernels have the same bits; compilers sum in an order of their own.
"""

from collections.abc import Callable

from rope_xp._core.call import Axes, Call, NormSpec, RotationSpec, get_interleaved
from rope_xp._core.typing import Array, Namespace

LANES = 16


def rotate(
    call: Call,
    norm: NormSpec,
    i: int,
    cos: Array,
    sin: Array,
    rotate_array: Callable[..., Array],
) -> Array:
    """Return array i of a call, normalized and rotated by ``rotate_array``."""
    xp, spec, x, weight = call.backend.xp, call.spec, call.arrays[i], call.weights[i]
    first, end, y = spec.rotary_offset, spec.rotary_offset + spec.rotary_dim, x
    if norm.over_slice:
        y, spec = x[..., first:end], spec._replace(rotary_offset=0)
    y = xp.astype(y, cos.dtype, copy=False)
    if weight is not None:
        weight = xp.astype(weight, cos.dtype, copy=False)
        weight = align_weight(xp, weight, spec.axes) + norm.weight_offset
    if norm.round_between:  # for the bits of other modules, which compute like this
        mean = xp.mean(y * y, axis=-1, keepdims=True)
    else:
        # A factor from float64 halves the error of a float32 row.
        exact = call.backend.has_float64(x) and not call.backend.is_compiling()
        mean = _sum_squares(call, y, spec)
        # 1 / count, as torch divides by a number in its own way.
        mean = (xp.astype(mean, xp.float64, copy=False) if exact else mean) * (1.0 / y.shape[-1])
    mean = mean + norm.eps
    factor = xp.rsqrt(mean) if hasattr(xp, "rsqrt") else 1.0 / xp.sqrt(mean)
    factor = xp.astype(factor, cos.dtype, copy=False)
    if not norm.round_between:
        y = rotate_array(xp, y if weight is None else y * weight, cos, sin, spec) * factor
    else:
        y = y * factor
        if not norm.weight_offset:
            y = xp.astype(xp.astype(y, x.dtype), cos.dtype)
        y = y if weight is None else y * weight
        y = rotate_array(xp, xp.astype(y, x.dtype), cos, sin, spec)
    y = xp.astype(y, x.dtype, copy=False)
    return xp.concat([x[..., :first], y, x[..., end:]], axis=-1) if norm.over_slice else y


def align_weight(xp: Namespace, weight: Array, axes: Axes) -> Array:
    """Return a weight (n,) or (heads, n) with all axes of an array, or one that has them all."""
    if len(weight.shape) == len(axes.names):
        return weight
    shape = [1] * len(axes.names)
    shape[-1] = weight.shape[-1]
    if len(weight.shape) > 1:
        shape[axes.heads or 0] = weight.shape[0]
    return xp.reshape(weight, tuple(shape))


def _sum_squares(call: Call, y: Array, spec: RotationSpec) -> Array:
    """Return sums (..., 1) of squares of rows, whose parts are halves of pairs, and the rest."""
    xp, squares = call.backend.xp, y * y
    if call.backend.is_compiling():
        return xp.sum(squares, axis=-1, keepdims=True)
    first, end = spec.rotary_offset, spec.rotary_offset + spec.rotary_dim
    middle = first + spec.rotary_dim // 2
    halves = squares[..., first:middle], squares[..., middle:end]
    if get_interleaved(spec)[0]:
        halves = squares[..., first:end:2], squares[..., first + 1 : end : 2]
    rest = [part for part in (squares[..., :first], squares[..., end:]) if part.shape[-1]]
    lanes = [_sum_in_lanes(xp, part) for part in (*halves, *rest)]
    total, width = sum(lanes[1:], lanes[0]), LANES
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width:]
    return total


def _sum_in_lanes(xp: Namespace, part: Array) -> Array:
    n = part.shape[-1]
    if n % LANES:
        zeros = xp.zeros_like(part[..., :1])
        part = xp.concat([part, *[zeros] * (-n % LANES)], axis=-1)
    lanes = [part[..., i : i + LANES] for i in range(0, n, LANES)]
    return sum(lanes[1:], lanes[0])
