"""The tables of a rope as tensors, which outlive the call that makes them or are constants."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar
from torch.utils.weak import WeakIdKeyDictionary

from rope_xp._core.caches import BoundedCache, cached_tables, pin
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.numbers import get_attributes
from rope_xp._rotation.tables import host_tables

from . import private, streams


@contextmanager
def _lasting() -> Iterator[None]:
    """Have plain tensors made, whatever the call is part of.

    Under functorch or a dispatch mode torch would make wrappers that are dead afterwards, and under
    inference_mode tensors that no backward pass may save.
    """
    with private.unobserved(), torch.inference_mode(False):
        yield


@cached_tables
def on_device(key: tuple[TableKey, torch.device]) -> DigitTables:
    """Return the tables of a rope on a device, from a bounded cache. Those of CPUs are numpy's."""
    table_key, device = key
    with _lasting():
        tables = [None if t is None else torch.from_numpy(t.base) for t in host_tables(table_key)]
        if device.type != "cpu":
            tables = [None if t is None else t.to(device) for t in tables]
    return DigitTables(*tables)


def is_traced(x: torch.Tensor) -> bool:
    """Return whether x only stands for a tensor, and tables that it meets must do so too."""
    return private.has_dispatch_modes() or private.is_fake(x)


def outlive(made: DigitTables) -> None:
    """Keep the memory of tables, though the cache forgets them, for what is launched now."""
    low, device = made.low, made.low.device
    if streams.is_capturing(device):
        pin(made)
    elif device.type != "cpu":
        known = _read_on.setdefault(low, set())
        stream = streams.current(device)
        if stream not in known:
            with _lasting():
                _read_on_current(made, device)
            known.add(stream)


_read_on: Any = WeakIdKeyDictionary()
"""By the first of some tables: on which streams they are read."""


def _read_on_current(made: DigitTables, device: torch.device) -> None:
    # Once they are forgotten, nobody else gets their memory before this stream has come so far.
    # Said once, it holds for all that is asked of the stream until then.
    for table in made:
        if table is not None:
            table.record_stream(torch.cuda.current_stream(device))


def in_graph(table_key: TableKey, device: torch.device) -> DigitTables:
    """Return tables as constants of the graph that a compiler makes."""
    rope = table_key.rope
    # A rule that is no dataclass can only be handed over by itself, not within a tuple.
    rule = None if dataclasses.is_dataclass(rope.scaling) else rope.scaling
    head_dim, double = guard_scalar(table_key.head_dim), table_key.double
    flat = _flat(rope, rule)
    made = []
    for which in range(5 if table_key.components else 4):
        name = _reader(flat, rule, head_dim, table_key.inverse, double, device, which)  # type: ignore[arg-type]  # an integer
        made.append(getattr(_readers, name)())
    return DigitTables(*(*made, None)[:5])


def _flat(value: Any, without: Any = None) -> Any:
    """Return a rope or rule as nested tuples of a class, names and plain values.

    In place of a dataclass instance that was made inside the graph, Dynamo (seen in torch 2.13)
    hands a constant function one with default fields, without a word.
    """
    if dataclasses.is_dataclass(value):
        held = get_attributes(value).items()
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
# constant result is computed in plain Python and enters the graph finished. A graph holds a tensor
# once, however often it is returned, but anything else becomes a global variable for good. So this
# returns the name of a function, and that returns a tensor.
@private.mark_constant
def _reader(
    flat: Any,
    rule: Any,
    head_dim: int,
    inverse: bool,
    double: bool,
    device: torch.device,
    which: int,
) -> str:
    rope = _built(flat)
    if rule is not None:
        object.__setattr__(rope, "scaling", rule)
    key = TableKey(rope, head_dim, inverse, double), device, which
    name: str | None = _NAMES.get(key)
    if name is None:
        name = f"table_{next(_numbers)}"  # Dynamo tells constants apart by the names of code
        setattr(_readers, name, _reading(name, *key))
        _NAMES.store(key, name)
        for evicted in {x for x in vars(_readers) if x.startswith("table_")} - {*_NAMES.values()}:
            delattr(_readers, evicted)
    return name


def _reading(
    name: str, table_key: TableKey, device: torch.device, which: int
) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        table: torch.Tensor = list(on_device((table_key, device)))[which]
        if private.is_exporting():
            return table.clone()  # or a program is saved with the memory of all tables
        private.mark_static(table)  # or dynamic=True has symbols for its sizes, shared with others
        return table

    read.__code__ = read.__code__.replace(co_name=name)
    return private.mark_constant(read)


_readers = ModuleType("tables of graphs")
_numbers = itertools.count()
_NAMES = BoundedCache(f"{__name__}._NAMES", 256)


def tensor(host: np.ndarray, device: torch.device | None) -> torch.Tensor:
    """Copy: torch warns of read-only numpy memory, and cannot take negative strides.

    It asks for those of an axis of length 1 too, which numpy calls contiguous.
    """
    return torch.tensor(host.copy(), device=device)
