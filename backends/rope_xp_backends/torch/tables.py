"""The tables of a rope as tensors, which outlive the call that makes them or are constants."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from rope_xp._contract.caches import hold, kept_tables
from rope_xp._contract.library import Digits, Recipe
from rope_xp._contract.numbers import held_by
from rope_xp._dispatch.backend import Backend, put_tables
from rope_xp._rotation.tables import host_tables, table_shapes

from . import streams


@contextmanager
def _lasting() -> Iterator[None]:
    """Have plain tensors made, whatever the call is part of.

    Under functorch or a dispatch mode torch would make wrappers that are dead afterwards, and under
    inference_mode tensors that no backward pass may save.
    """
    with (
        torch._C._DisableFuncTorch(),  # noqa: SLF001  # torch has no public name for either
        _disable_current_modes(),
        torch.inference_mode(False),
    ):
        yield


@kept_tables
def cached(key: tuple[Backend, Recipe, torch.device]) -> Digits:
    """Return the tables of a rope on a device, from a bounded cache."""
    library, recipe, device = key
    with _lasting():
        return put_tables(library, recipe, device)


def outlive(made: Digits) -> None:
    """Keep the memory of tables, though the cache forgets them, for what is launched now."""
    low, device = made.low, made.low.device
    if streams.capturing(device):
        hold(made)
    elif device.type != "cpu":
        known = _read_on.setdefault(low, set())
        stream = streams.current(device)
        if stream not in known:
            with _lasting():
                _read_on_current(made, device)
            known.add(stream)


_read_on: Any = WeakIdKeyDictionary()
"""By the first of some tables: on which streams they are read."""


def _read_on_current(made: Digits, device: torch.device) -> None:
    # Once they are forgotten, nobody else gets their memory before this stream has come so far.
    # Said once, it holds for all that is asked of the stream until then.
    for table in made:
        if table is not None:
            table.record_stream(torch.cuda.current_stream(device))


def in_graph(recipe: Recipe, device: torch.device) -> Digits:
    """Return tables as constants of the graph that a compiler makes."""
    rope = recipe.rope
    # A rule that is no dataclass can only be handed over by itself, not within a tuple.
    rule = None if dataclasses.is_dataclass(rope.scaling) else rope.scaling
    head_dim, wide = guard_scalar(recipe.head_dim), recipe.wide
    made: Any = _constant(_flat(rope, rule), rule, head_dim, recipe.inverse, wide, device)  # type: ignore[arg-type]  # an integer
    pairs = int(guard_scalar(head_dim if rope.rotary_dim is None else rope.rotary_dim)) // 2
    # Dynamo makes symbols of the sizes of constants too, given dynamic=True. These are known.
    known = [
        None if n is None else t.as_strided(n, (*n[1:], 1)[: len(n)])
        for t, n in zip(made, table_shapes(pairs, recipe.components), strict=True)
    ]
    return Digits(*known)


def _flat(value: Any, without: Any = None) -> Any:
    """Return a rope or rule as nested tuples of a class, names and plain values.

    In place of a dataclass instance that was made inside the graph, Dynamo (seen in torch 2.13)
    hands a constant function one with default fields, without a word.
    """
    if dataclasses.is_dataclass(value):
        held = held_by(value).items()
        kept = [(name, _flat(v)) for name, v in held if v is None or v is not without]
        return (type(value), *kept)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Numbers of a second rope become symbols, which are no constants.
        return guard_scalar(value)
    return value


def _built(flat: Any) -> Any:
    """Return what _flat was given."""
    if not (isinstance(flat, tuple) and flat and isinstance(flat[0], type)):
        return flat
    made: Any = object.__new__(flat[0])
    for name, value in flat[1:]:
        object.__setattr__(made, name, _built(value))
    return made


# Dynamo would trace through the cache and numpy, and compile the float64 builder in float32. A
# constant result is computed in plain Python and enters the graph finished.
def _constant(
    flat: Any,
    rule: Any,
    head_dim: int,
    inverse: bool,
    wide: bool,
    device: torch.device,
) -> tuple[torch.Tensor | None, ...]:
    rope = _built(flat)
    if rule is not None:
        object.__setattr__(rope, "scaling", rule)
    host = host_tables(Recipe(rope, head_dim, inverse, wide))
    return tuple([None if table is None else tensor(table, device) for table in host])


# What torch.compiler.assume_constant_result sets, which would import all of Dynamo for it.
vars(_constant)["_dynamo_marked_constant"] = True


def tensor(host: np.ndarray, device: torch.device | None) -> torch.Tensor:
    """Copy: torch warns of read-only numpy memory, and cannot take negative strides.

    It asks for those of an axis of length 1 too, which numpy calls contiguous.
    """
    return torch.tensor(host.copy(), device=device)
