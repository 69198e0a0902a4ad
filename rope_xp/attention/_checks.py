"""From the arguments of :mod:`rope_xp.attention` to checked arrays of one float dtype."""

from typing import Any, NamedTuple

from rope_xp import _heads
from rope_xp._arguments import fields, messages
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.rope import RoPE


class Checked(NamedTuple):
    """Arrays that fit each other, in the dtype that is computed in."""

    backend: Backend
    q: Array
    k: Array
    v: Array
    """k again where a function takes no v."""
    dtype: Any
    """Of q as it came, and so of the result."""


def check(q: Any, k: Any, *values: Any) -> Checked:
    """Check q, k and perhaps v, and widen them: to float64 if one is float64, else to float32."""
    arrays = dict(zip(("q", "k", "v"), (q, k, *values), strict=False))
    backend = find.backend_of(q, "q")
    names = []
    for argument, x in arrays.items():
        names.append(_heads.check_array(backend, "q", q, argument, x))
        _heads.check_axes(argument, x)
    _heads.check_fit(tuple(q.shape), tuple(k.shape))
    for v in values:
        _check_values(tuple(k.shape), tuple(v.shape))
    xp = backend.xp
    compute = xp.float64 if "float64" in names else xp.float32
    wide = [xp.astype(x, compute, copy=False) for x in arrays.values()]
    return Checked(backend, wide[0], wide[1], wide[-1], q.dtype)


def _check_values(k: tuple[int, ...], v: tuple[int, ...]) -> None:
    if k[:-1] != v[:-1]:
        msg = (
            f"k of shape {k} and v of shape {v} must have equal batch, tokens and heads: the axes "
            f"are {_heads.AXES}, and head_dim alone may differ. Pass the v of the same tokens"
        )
        raise RopeError(msg)


def check_same_tokens(function: str, q: Array, k: Array) -> None:
    """Check that q and k are of the same tokens."""
    if q.shape[-3] != k.shape[-3]:
        msg = (
            f"q has {q.shape[-3]} tokens and k {k.shape[-3]}; {function} needs q and k of the same "
            "tokens. Pass those of the whole sequence"
        )
        raise RopeError(msg)


def check_mask(given: Checked, mask: Any, shape: tuple[int, ...], axes: str) -> None:
    """Check that mask is boolean and broadcasts to a shape."""
    backend = given.backend
    _heads.check_library(backend, "q", given.q, "mask", mask)
    if backend.dtype_name(mask) != "bool":
        msg = (
            f"mask is {messages.describe(backend, mask)}; it must be boolean, True where there is "
            "something to attend to. Of a mask that is added to scores, take mask == 0"
        )
        raise TypeError(msg)
    has = tuple(mask.shape)
    if not _heads.broadcasts(has, shape):
        msg = (
            f"mask has shape {has}; it must broadcast to {axes} = {shape}. Give an axis that it "
            "lacks by None in an index"
        )
        raise RopeError(msg)


def rotated(
    rope: RoPE | None, q: Array, k: Array, positions: Any, k_positions: Any = None
) -> tuple[Array, Array]:
    """Return q and k rotated by rope, or as they are without one."""
    if rope is not None:
        fields.check_rope(rope, RoPE)
        return rope.apply(q, k, positions, k_positions=k_positions)
    for argument, given in (("positions", positions), ("k_positions", k_positions)):
        if given is not None:
            msg = (
                f"{argument} came without a rope, and without one nothing is rotated; pass "
                f"rope=rope_xp.RoPE(), or leave {argument} away"
            )
            raise RopeError(msg)
    return q, k


def check_features(phi_q: Array, varphi_k: Array) -> None:
    """Check that both feature maps have as many features."""
    if phi_q.shape[-1] != varphi_k.shape[-1]:
        msg = (
            f"phi made {phi_q.shape[-1]} features and varphi {varphi_k.shape[-1]}; their products "
            "are summed, so make as many of each"
        )
        raise RopeError(msg)
