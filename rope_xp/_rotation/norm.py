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
    y, weight = _read_operands(xp, norm, spec, x, call.weights[i], cos.dtype)
    own = spec._replace(rotary_offset=0) if norm.over_slice else spec
    # A factor from float64 halves the error of a float32 row.
    exact = call.backend.has_float64(x) and not call.backend.is_compiling()
    mean = _sum_squares(call, y, own)
    # 1 / count, as torch divides by a number in its own way.
    mean = (xp.astype(mean, xp.float64, copy=False) if exact else mean) * (1.0 / y.shape[-1])
    factor = xp.astype(_take_rsqrt(xp, mean + norm.eps), cos.dtype, copy=False)
    y = rotate_array(xp, y if weight is None else y * weight, cos, sin, own) * factor
    return _put_back(xp, norm, spec, x, xp.astype(y, x.dtype, copy=False))


def round_between(call: Call) -> Call:
    """Return a call without a norm that is to round: its arrays are normalized, and rounded."""
    norm = call.spec.norm
    if norm is None or not norm.round_between:
        return call
    arrays = normalize_rounded(call.backend, call.arrays, call.weights, call.spec, norm)
    return replace(call, arrays=arrays, spec=call.spec._replace(norm=None), weights=())


def normalize_rounded(
    backend: Any,
    arrays: tuple[Array, ...],
    weights: tuple[Array | None, ...],
    spec: RotationSpec,
    norm: NormSpec,
) -> tuple[Array, ...]:
    """Return arrays normalized and rounded, by the steps of torch's modules, for their bits."""
    xp, results = backend.xp, []
    for x, given in zip(arrays, weights, strict=True):
        dtype = xp.float64 if backend.dtype_name(x) == "float64" else xp.float32
        y, weight = _read_operands(xp, norm, spec, x, given, dtype)
        rounds = y.dtype != x.dtype
        # No other module has bits of numpy.
        mean = xp.vecdot(y, y)[..., None] * (1.0 / y.shape[-1]) if backend.host else None
        mean = xp.mean(y * y, axis=-1, keepdims=True) if mean is None else mean
        y = y * _take_rsqrt(xp, mean + norm.eps)
        if rounds and not norm.weight_offset:
            y = xp.astype(xp.astype(y, x.dtype), y.dtype)
        y = y if weight is None else y * weight
        y = xp.astype(y, x.dtype) if rounds else y
        results.append(_put_back(xp, norm, spec, x, y) if norm.over_slice else y)
    return tuple(results)


def _read_operands(
    xp: Namespace, norm: NormSpec, spec: RotationSpec, x: Array, weight: Array | None, dtype: Any
) -> tuple[Array, Array | None]:
    """Return what of an array is normalized, and its weight and offset."""
    if norm.over_slice:
        x = x[..., spec.rotary_offset : spec.rotary_offset + spec.rotary_dim]
    if weight is not None:
        weight = weight if weight.dtype == dtype else xp.astype(weight, dtype)
        weight = align_weight(xp, weight, spec.axes)
        weight = weight + norm.weight_offset if norm.weight_offset else weight
    return x if x.dtype == dtype else xp.astype(x, dtype), weight


def _take_rsqrt(xp: Namespace, mean: Array) -> Array:
    return xp.rsqrt(mean) if hasattr(xp, "rsqrt") else 1.0 / xp.sqrt(mean)


def _put_back(xp: Namespace, norm: NormSpec, spec: RotationSpec, x: Array, y: Array) -> Array:
    """Return y, or x with the slice y."""
    if not norm.over_slice:
        return y
    first, end = spec.rotary_offset, spec.rotary_offset + spec.rotary_dim
    return xp.concat([x[..., :first], y, x[..., end:]], axis=-1)


def align_weight(xp: Namespace, weight: Array, axes: Axes) -> Array:
    """Return a weight (n,) or (heads, n) with all axes of an array, or one that has them all."""
    if len(weight.shape) == len(axes.names):
        return weight
    shape = [1] * len(axes.names)
    if len(weight.shape) > 1:
        shape[axes.heads or 0] = weight.shape[0]
    shape[-1] = weight.shape[-1]
    return xp.reshape(weight, tuple(shape))  # jax may be told to add no axes by itself


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
