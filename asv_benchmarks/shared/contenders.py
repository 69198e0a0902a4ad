"""The contenders: rope_xp, a copy of the same bytes, and what users run today."""

import importlib
from functools import cache, lru_cache

import rope_xp
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, HEADS, CannotMeasure, Case, case
from rope_xp._bench.targets import Target
from rope_xp._core.typing import Array, Layout

from .common import TOKENS
from .rival_calls import RIVALS, Arrays, Function, action


@lru_cache(maxsize=1)
def contenders(
    name: str,
    layout: Layout,
    dtype: str,
    tokens: int = TOKENS,
    start: int = 0,
    heads: tuple[int, int] = HEADS,
) -> tuple[Target, dict[str, Action]]:
    """Return the target and what rope_xp and a copy do on it, by name.

    new, out, in place
        rope_xp: into new arrays, into given ones, into its inputs.
    copy, copy into
        The limit of the first and the second.
    jit x * 2
        In jax the least that a jitted function can do.
    bhsd
        As new, of views with heads before tokens.
    slice, slice of fused
        In place, x alone: an array of its own, and q in the result of a projection (batch, tokens,
        3, heads, head_dim).

    Raises
    ------
    CannotMeasure
        If the target or the dtype is not here.
    """
    inputs = case(name, tokens, start, dtype, heads)
    target, q, k, positions = inputs
    rope = rope_xp.RoPE(base=BASE, layout=layout)
    actions: dict[str, Action] = {
        "new": lambda: rope.apply(q, k, positions),
        "copy": lambda: (target.copy(q), target.copy(k)),
    }
    if target.library == "jax":
        doubled = importlib.import_module("jax").jit(lambda q, k: (q * 2, k * 2))
        actions["jit x * 2"] = lambda: doubled(q, k)
    elif target.library != "dask":
        actions |= _into_memory(inputs, rope)
    return target, actions


def _into_memory(inputs: Case, rope: rope_xp.RoPE) -> dict[str, Action]:
    """Return what only a library can do whose arrays can be written to and viewed.

    Memory is taken by the first call that needs it.
    """
    target, q, k, positions = inputs
    xp = target.backend.xp
    out = cache(lambda: (target.copy(q), target.copy(k)))
    own = cache(lambda: (target.copy(q), target.copy(k)))
    alone = cache(lambda: target.copy(q))
    sliced = cache(lambda: xp.stack([q, q, q], axis=2)[:, :, 0])
    turned = tuple(xp.permute_dims(x, (0, 2, 1, 3)) for x in (q, k))

    return {
        "out": lambda: rope.apply(q, k, positions, out=out()),
        "in place": lambda: rope.apply(*own(), positions, out=own()),
        "copy into": copy_into(target, (q, k)),
        "bhsd": lambda: rope.apply(turned[0], turned[1], positions, axes="bhsd"),
        "slice": lambda: (rope.rotate(alone(), positions, out=alone()),),
        "slice of fused": lambda: (rope.rotate(sliced(), positions, out=sliced()),),
    }


def copy_into(target: Target, arrays: Arrays) -> Action:
    """Return a copy of arrays into memory that is taken by the first call."""
    out = cache(lambda: tuple(map(target.copy, arrays)))

    def copy() -> Arrays:
        for to, x in zip(out(), arrays, strict=True):
            target.backend.write(to, x)
        return out()

    return copy


def pair(
    name: str,
    layout: Layout,
    dtype: str,
    ours: str,
    other: str,
    tokens: int = TOKENS,
    start: int = 0,
    heads: tuple[int, int] = HEADS,
) -> tuple[Target, Action, Action]:
    """Return two contenders, of which the second may be one of :data:`RIVALS`.

    Raises
    ------
    CannotMeasure
        If the target, the dtype or one of the two is not here.
    """
    target, actions = contenders(name, layout, dtype, tokens, start, heads)
    if other in RIVALS:
        return target, actions[ours], action(other, case(name, tokens, start, dtype, heads), layout)
    if not {ours, other} <= set(actions):
        msg = f"{name} cannot do {ours!r} or {other!r}"
        raise CannotMeasure(msg)
    return target, actions[ours], actions[other]


def forward_and_backward(
    target: Target, function: Function, arrays: Arrays, positions: Array
) -> Action | None:
    """Return a call forward and its gradient in the arrays, None where a library has none."""
    if target.library == "torch":
        torch = importlib.import_module("torch")
        own = tuple(x.detach().clone().requires_grad_() for x in arrays)
        given = tuple(map(target.copy, arrays))  # Liger writes over gradients too
        return lambda: torch.autograd.grad(function(own, positions), own, given)
    if target.library != "jax":
        return None
    jax = importlib.import_module("jax")

    @jax.jit
    def both(arrays: Arrays, positions: Array) -> Arrays:
        results, pull = jax.vjp(lambda arrays: function(arrays, positions), arrays)
        return (*results, *pull(arrays)[0])

    return lambda: both(arrays, positions)
