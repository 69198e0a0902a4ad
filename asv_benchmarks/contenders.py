"""What is timed beside what: rope_xp, a copy of the same bytes, and what users run today.

asv and the tables in the documentation take their figures from here, so they measure the same.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache

import rope_xp
from rope_xp import _reference, _targets
from rope_xp._targets import Target
from rope_xp._typing import Array

from . import common

Action = Callable[[], tuple[Array, ...]]
TOKENS = 4096
REPEAT = 9


def usual(target: Target) -> Callable[..., tuple[Array, ...]]:
    """Return the formula of Hugging Face's Llama in a library: eager, in jax jitted."""
    xp = target.backend.xp

    def formula(q: Array, k: Array, positions: Array) -> tuple[Array, ...]:
        cos, sin = _reference.usual_cos_sin(xp, positions, q.shape[-1], common.BASE)
        return tuple(_reference.usual_apply_tables(xp, x, cos, sin) for x in (q, k))

    if target.library == "jax":
        return importlib.import_module("jax").jit(formula)
    return formula


@lru_cache(maxsize=1)
def contenders(name: str, layout: str, dtype: str) -> tuple[Target, dict[str, Action]]:
    """Return the target and all that can be timed on it, by name.

    new, out, in place
        rope_xp: into new arrays, into given ones, into its inputs.
    copy, copy into
        The limit of the first and the second.
    usual, compiled
        The formula in common use, eager (in jax jitted), and compiled by torch.
    jit x * 2
        In jax the least that a jitted function can do.
    bhsd
        As new, of views with heads before tokens.
    slice, slice of fused
        In place, x alone: an array of its own, and q in the result of a projection (batch, tokens,
        3, heads, head_dim).
    """
    target, q, k, positions = common.case(name, TOKENS, dtype=dtype)
    xp, rope = target.backend.xp, rope_xp.RoPE(base=common.BASE, layout=layout)
    formula = usual(target)
    actions: dict[str, Action] = {
        "new": lambda: rope.apply(q, k, positions),
        "copy": lambda: (target.copy(q), target.copy(k)),
        "usual": lambda: formula(q, k, positions),
    }
    if target.library == "torch":
        compiled = importlib.import_module("torch").compile(formula)
        actions["compiled"] = lambda: compiled(q, k, positions)
    if target.library == "dask":
        return target, actions
    if target.library == "jax":
        jax = importlib.import_module("jax")
        doubled = jax.jit(lambda q, k: (q * 2, k * 2))
        actions["jit x * 2"] = lambda: doubled(q, k)
        return target, actions

    def copy_into() -> tuple[Array, ...]:
        for to, x in zip(out, (q, k), strict=True):
            target.backend.write(to, x)
        return out

    out = target.copy(q), target.copy(k)
    turned = tuple(xp.permute_dims(x, (0, 2, 1, 3)) for x in (q, k))
    fused = xp.stack([q, q, q], axis=2)
    alone, sliced = target.copy(q), fused[:, :, 0]
    own = target.copy(q), target.copy(k)
    return target, actions | {
        "out": lambda: rope.apply(q, k, positions, out=out),
        "in place": lambda: rope.apply(*own, positions, out=own),
        "copy into": copy_into,
        "bhsd": lambda: rope.apply(*turned, positions, axes="bhsd"),
        "slice": lambda: (rope.rotate(alone, positions, out=alone),),
        "slice of fused": lambda: (rope.rotate(sliced, positions, out=sliced),),
    }


def ratio(name: str, layout: str, dtype: str, ours: str, other: str) -> float:
    """Return the time of one contender over that of another: above 1 where ours is faster."""
    target, actions = contenders(name, layout, dtype)
    mine, theirs = _targets.best_seconds(target, REPEAT, actions[ours], actions[other])
    return theirs / mine
