"""RMSNorm of heads before their rotation (Zhang and Sennrich, arXiv 1910.07467, eq. 4).

    x * w * f, where w = weight + offset and f = 1 / sqrt(mean(x**2) + eps)

A rotation is linear, so the factor f of a row is multiplied last. Squares are summed in lanes,
component i of each part of a row in lane i % LANES, and lanes in a tree. So numpy, torch and
kernels have the same bits; compilers sum in an order of their own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    xp, spec, x = call.backend.xp, call.spec, call.arrays[i]
    y, weight = _read_operands(call, norm, i, cos.dtype)
    spec = spec._replace(rotary_offset=0) if norm.over_slice else spec
    # A factor from float64 halves the error of a float32 row.
    exact = call.backend.has_float64(x) and not call.backend.is_compiling()
    mean = _sum_squares(call, y, spec)
    # 1 / count, as torch divides by a number in its own way.
    mean = (xp.astype(mean, xp.float64, copy=False) if exact else mean) * (1.0 / y.shape[-1])
    factor = xp.astype(_take_rsqrt(xp, mean + norm.eps), cos.dtype, copy=False)
    y = rotate_array(xp, y if weight is None else y * weight, cos, sin, spec) * factor
    return _put_back(call, norm, x, xp.astype(y, x.dtype, copy=False))


def round_between(call: Call) -> Call:
    """Return a call without a norm that is to round: its arrays are normalized, and rounded.

    The steps are those of other modules, for their bits.
    """
    norm, xp, arrays = call.spec.norm, call.backend.xp, []
    if norm is None or not norm.round_between:
        return call
    for i, x in enumerate(call.arrays):
        wide = call.backend.dtype_name(x) == "float64"
        y, weight = _read_operands(call, norm, i, xp.float64 if wide else xp.float32)
        y = y * _take_rsqrt(xp, xp.mean(y * y, axis=-1, keepdims=True) + norm.eps)
        if not norm.weight_offset and y.dtype != x.dtype:
            y = xp.astype(xp.astype(y, x.dtype), y.dtype)
        y = y if weight is None else y * weight
        arrays.append(_put_back(call, norm, x, xp.astype(y, x.dtype, copy=False)))
    return replace(call, arrays=tuple(arrays), spec=call.spec._replace(norm=None), weights=())


def _read_operands(call: Call, norm: NormSpec, i: int, dtype: Any) -> tuple[Array, Array | None]:
    """Return what of array i is normalized, and its weight and offset."""
    xp, spec, x, weight = call.backend.xp, call.spec, call.arrays[i], call.weights[i]
    if norm.over_slice:
        x = x[..., spec.rotary_offset : spec.rotary_offset + spec.rotary_dim]
    if weight is not None:
        weight = xp.astype(weight, dtype, copy=False)
        weight = align_weight(xp, weight, spec.axes) + norm.weight_offset
    return xp.astype(x, dtype, copy=False), weight


def _take_rsqrt(xp: Namespace, mean: Array) -> Array:
    return xp.rsqrt(mean) if hasattr(xp, "rsqrt") else 1.0 / xp.sqrt(mean)


def _put_back(call: Call, norm: NormSpec, x: Array, y: Array) -> Array:
    """Return y, or x with the slice y."""
    first, end = call.spec.rotary_offset, call.spec.rotary_offset + call.spec.rotary_dim
    if not norm.over_slice:
        return y
    return call.backend.xp.concat([x[..., :first], y, x[..., end:]], axis=-1)


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
