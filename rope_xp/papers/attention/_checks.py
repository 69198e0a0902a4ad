"""From the arguments of :mod:`rope_xp.papers.attention` to checked arrays of one float dtype."""

from typing import Any, NamedTuple

from rope_xp._arguments import fields, messages
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.papers import _heads
from rope_xp.rope import RoPE


class CheckedArrays(NamedTuple):
    """Arrays that fit each other, in the dtype of the arithmetic."""

    backend: Backend
    q: Array
    k: Array
    v: Array
    """k again where a function takes no v."""


def check_arrays(q: Any, k: Any, *values: Any) -> CheckedArrays:
    """Check q, k and optionally v, and convert them to the dtype of the arithmetic."""
    arrays = dict(zip(("q", "k", "v"), (q, k, *values), strict=False))
    backend = find.require_backend(q, "q")
    dtypes = [_heads.check_array(backend, "q", q, name, x) for name, x in arrays.items()]
    _heads.check_shapes(q, k)
    for v in values:
        _heads.check_axes("v", v)
        if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
            msg = (
                f"k of shape {tuple(k.shape)} and v of shape {tuple(v.shape)} must have equal "
                f"batch, tokens and heads: the axes are {_heads.AXES}, and head_dim alone may "
                "differ. Pass the v of the same tokens"
            )
            raise RopeError(msg)
    dtype = _heads.compute_dtype(backend.xp, dtypes)
    converted = [backend.xp.astype(x, dtype, copy=False) for x in arrays.values()]
    return CheckedArrays(backend, converted[0], converted[1], converted[-1])


def check_same_tokens(function: str, q: Array, k: Array) -> None:
    """Check that q and k have as many tokens."""
    if q.shape[-3] != k.shape[-3]:
        msg = (
            f"q has {q.shape[-3]} tokens and k {k.shape[-3]}; {function} needs q and k of the same "
            "tokens. Pass those of the whole sequence"
        )
        raise RopeError(msg)


def check_mask(arrays: CheckedArrays, mask: Any, shape: tuple[int, ...], axes: str) -> None:
    """Check that mask is boolean and broadcasts to a shape."""
    backend = arrays.backend
    _heads.check_library(backend, "q", arrays.q, "mask", mask)
    if backend.dtype_name(mask) != "bool":
        msg = (
            f"mask is {messages.describe(backend, mask)}; it must be boolean, True where there is "
            "something to attend to. Of a mask that is added to scores, take mask == 0"
        )
        raise TypeError(msg)
    if not _heads.can_broadcast(tuple(mask.shape), shape):
        msg = (
            f"mask has shape {tuple(mask.shape)}; it must broadcast to {axes} = {shape}. Give an "
            "axis that it lacks by None in an index"
        )
        raise RopeError(msg)


def rotate(
    rope: RoPE | None, q: Array, k: Array, positions: Any, k_positions: Any = None
) -> tuple[Array, Array]:
    """Rotate q and k, or return them unchanged without a rope."""
    if rope is not None:
        fields.check_rope(rope, RoPE)
        return rope.apply(q, k, positions, k_positions=k_positions)
    for argument, value in (("positions", positions), ("k_positions", k_positions)):
        if value is not None:
            msg = (
                f"{argument} came without a rope, and without one nothing is rotated; pass "
                f"rope=rope_xp.RoPE(), or leave {argument} away"
            )
            raise RopeError(msg)
    return q, k
