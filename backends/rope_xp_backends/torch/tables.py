"""The tables of a rope as tensors: cached ones, and constants of a compiler's graph."""

import dataclasses
import itertools
from types import ModuleType
from typing import Any

import torch

from rope_xp._core.caches import BoundedCache, cached_tables, pin
from rope_xp._core.numbers import get_attributes
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._rotation.tables import host_tables

from . import private


@cached_tables
def tables_on_device(key: tuple[TableKey, torch.device]) -> DigitTables:
    """Return the tables of a rope on a device, from a bounded cache. Those of CPUs are numpy's."""
    table_key, device = key
    # Under functorch or a dispatch mode torch would make wrappers that are dead afterwards, and
    # under inference_mode tensors that no backward pass may save.
    with private.unobserved(), torch.inference_mode(False):
        tables = [None if t is None else torch.from_numpy(t.base) for t in host_tables(table_key)]
        if device.type != "cpu":
            tables = [None if t is None else t.to(device) for t in tables]
    return DigitTables(*tables)


def extend_lifetime(tables: DigitTables) -> None:
    """Keep the memory of tables for launches that follow, though the cache may evict them."""
    low, device = tables.low, tables.low.device
    if private.is_capturing(device):
        pin(tables)
    elif device.type != "cpu":
        streams_read: set[int] = low.__dict__.setdefault("_rope_xp_streams", set())
        stream = private.current_stream(device)
        if stream not in streams_read:
            with private.unobserved(), torch.inference_mode(False):
                # One record covers all work that the stream has when tables are freed.
                for table in tables:
                    if table is not None:
                        table.record_stream(torch.cuda.current_stream(device))
            streams_read.add(stream)


def tables_in_graph(table_key: TableKey, device: torch.device) -> DigitTables:
    """Return tables as constants of the graph that a compiler makes."""
    rope = table_key.rope
    # A scaling that is no dataclass can only be passed by itself, not within a tuple.
    scaling = None if dataclasses.is_dataclass(rope.scaling) else rope.scaling
    options = private.guard_scalar(table_key.head_dim), table_key.inverse, table_key.double
    flat_rope = _flatten(rope, scaling)
    tables = []
    for index in range(4 if rope.position_axes is None else 5):
        name = _name_reader(flat_rope, scaling, options, device, index)
        tables.append(getattr(_readers, name)())
    return DigitTables(*(*tables, None)[:5])


def _flatten(value: Any, without: Any = None) -> Any:
    """Return a rope or scaling as nested tuples of a class, names and plain values.

    In place of a dataclass instance that was made inside the graph, Dynamo (seen in torch 2.13)
    passes to a constant function one with default fields, without a warning.
    """
    if dataclasses.is_dataclass(value):
        fields = get_attributes(value).items()
        flat = [(name, _flatten(v)) for name, v in fields if v is None or v is not without]
        return (type(value), *flat)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Numbers of a second rope become symbols, which are no constants.
        return private.guard_scalar(value)
    return value


def _unflatten(flat: Any) -> Any:
    if not (isinstance(flat, tuple) and flat and isinstance(flat[0], type)):
        return flat
    instance: Any = object.__new__(flat[0])
    for name, value in flat[1:]:
        object.__setattr__(instance, name, _unflatten(value))
    return instance


# Dynamo would trace through the cache and numpy, and compile the float64 builder in float32. A
# constant result is computed in plain Python and enters the graph finished. A graph holds a tensor
# once, however often it is returned, but anything else becomes a global variable for good. So this
# returns the name of a function, and that returns a tensor.
@private.mark_constant
def _name_reader(
    flat_rope: Any, scaling: Any, options: tuple[Any, ...], device: torch.device, index: int
) -> str:
    rope = _unflatten(flat_rope)
    if scaling is not None:
        object.__setattr__(rope, "scaling", scaling)
    table_key = TableKey(rope, *options)
    name: str | None = _NAMES.get((table_key, device, index))
    if name is not None:
        return name

    def read() -> torch.Tensor:
        table: torch.Tensor = list(tables_on_device((table_key, device)))[index]
        if private.is_exporting():
            return table.clone()  # or a program is saved with the memory of all tables
        private.mark_static(table)  # or dynamic=True has symbols for its sizes, shared with others
        return table

    name = f"table_{next(_numbers)}"
    read.__code__ = read.__code__.replace(co_name=name)  # by which Dynamo tells constants apart
    setattr(_readers, name, private.mark_constant(read))
    _NAMES.store((table_key, device, index), name)
    for evicted in {x for x in vars(_readers) if x.startswith("table_")} - {*_NAMES.values()}:
        delattr(_readers, evicted)
    return name


_readers = ModuleType("tables of graphs")
_numbers = itertools.count()
_NAMES = BoundedCache(f"{__name__}._NAMES", 256)
