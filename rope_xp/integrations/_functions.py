"""Replace the functions by which models of transformers rotate q and k."""

from __future__ import annotations

from collections.abc import Hashable
from types import ModuleType
from typing import Any

import torch

from rope_xp._arguments import parse_tables
from rope_xp._core.caches import cached
from rope_xp._core.call import Call
from rope_xp._core.errors import RopeError
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp.integrations import _classes, _formats, _methods, _recognition
from rope_xp.integrations._formats import Format, Tables
from rope_xp.integrations._methods import Function
from rope_xp.integrations._recognition import RecognizedRotation

ALONE = "patch(model, rotation=False) replaces the rotary modules alone"


class _UnusualCallError(Exception):
    """A call with other arguments than arrays and tables, which the model's own function takes."""


Operands = tuple[tuple[torch.Tensor, ...], Tables, str]
"""Arrays, tables, and the axes of the arrays."""


def _operands(
    rotation: RecognizedRotation, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Operands | None:
    """Return what a call rotates by which tables; None where it says more, or too little."""
    parameters = rotation.parameters
    n, plain = rotation.arrays, rotation.arrays + rotation.tables
    if len(arguments) > len(parameters) or not named.keys() <= set(parameters[len(arguments) :]):
        return None
    values = dict(zip(parameters, arguments, strict=False)) | named
    xs = tuple([values.pop(name, None) for name in parameters[:n]])
    tables = tuple([values.pop(name, None) for name in parameters[n:plain]])
    unsqueeze_dim = values.pop("unsqueeze_dim", rotation.unsqueeze_dim)
    # Such as keys of which some shall not be rotated. While torch.jit traces, sizes are tensors.
    tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]  # of torch
    if tracing or any(value is not None for value in values.values()):
        return None
    for value in (*xs, *tables):
        if value is None:
            return None
    axes = rotation.axes(xs[0].ndim, tables[0].ndim, unsqueeze_dim)
    if axes is None:
        return None
    place = axes.index("s")
    for x in xs:
        if x.shape[place] != tables[0].shape[-2]:  # queries of the last tokens alone
            return None
    return xs, tables, axes


def _parse(rotation: RecognizedRotation, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Return the checked call of a rotation without gradients."""
    operands = _operands(rotation, arguments, named)
    if operands is None:
        raise _UnusualCallError
    xs, tables, axes = operands
    cos, sin = _formats.read(tables, rotation.form)
    rope = rotation.rope(2 * cos.shape[-1])
    if len(xs) == 1:
        return parse_tables.rotate(rope, xs[0], cos, sin, axes, None, False)
    return parse_tables.apply(rope, xs[0], xs[1], cos, sin, axes, None)


def _signature(
    rotation: RecognizedRotation, key: Hashable, arguments: tuple[Any, ...], named: dict[str, Any]
) -> CallSignature | None:
    """Return the signature of a call, None where it is unusual.

    The columns that are read begin where the model's tables begin, and their strides follow from
    the strides of these: so the tables stand in it as they are. Only torch's library knows that.
    """
    n, plain = rotation.arrays, rotation.arrays + 2
    usual = rotation.form != "complex" and len(arguments) >= plain
    if not usual or not isinstance(arguments[0], torch.Tensor):
        return None
    if len(arguments) > plain or named:
        rest = arguments[plain:]
        if not all(type(x) is int for x in (*rest, *named.values())):
            return None
        key = key, rest, *named.items()
    tables = arguments[n], arguments[n + 1]
    return call_cache.signature(key, arguments[:n], None, None, None, False, tables)


def build_replacement(
    name: str, original: Function, rotation: RecognizedRotation, module: ModuleType | None = None
) -> Function:
    """Return a function that does the same by rope_xp.

    A function that replaces the original in its module later on is called instead.
    """
    function = _recognition.own_function(original)
    key = object()  # identifies the rotation in signatures

    def rotate(*arguments: Any, **named: Any) -> Any:
        if module is not None and getattr(module, name) is not original:
            return _call_cast(getattr(module, name), arguments, named)
        results = signature = None
        # Autograd keeps tables, of which those of a model have more columns than are read.
        if not torch.is_grad_enabled():
            signature = _signature(rotation, key, arguments, named)
        if signature is not None:
            try:
                results = call_cache.run(signature, _parse, rotation, arguments, named)
            except _UnusualCallError:
                results = None
        if results is None:
            operands = _operands(rotation, arguments, named)
            if operands is None:
                return _cast_like(rotation, function(*arguments, **named), arguments, named)
            results = _recognition.rotate(rotation, *operands)
        return results if rotation.arrays > 1 else results[0]

    rotate.__name__ = name
    rotate.replaces = original, rotation  # type: ignore[attr-defined]  # see Replace
    return rotate


def _call_cast(function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function with tables in the dtype of q, which other functions expect."""
    dtype = arguments[0].dtype

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and not x.is_complex() else x

    return function(*map(cast, arguments), **{name: cast(x) for name, x in named.items()})


def _cast_like(
    rotation: RecognizedRotation, results: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return results in the dtypes of x. Tables of float32 have promoted them, to round once."""
    values = dict(zip(rotation.parameters, arguments, strict=False)) | named
    xs = [values.get(name) for name in rotation.parameters[: rotation.arrays]]
    if isinstance(results, tuple):
        pairs = zip(results, xs, strict=True)
        return tuple(y if x is None else y.to(x.dtype) for y, x in pairs)
    return results.to(next(x.dtype for x in xs if x is not None))


def functions_called(kind: type) -> tuple[tuple[str, Function], ...]:
    """Return the functions that rotate which the methods of a class call, with their names."""
    try:
        return _methods.functions_called(kind)
    except RopeError as error:
        raise RopeError(f"{error}; {ALONE}") from None


@cached(256)
def _rotating_class(
    kind: type, _: tuple[tuple[str, Function], ...], forms: tuple[Format, ...]
) -> type:
    def replace(name: str, original: Function, module: ModuleType | None) -> Function:
        where = f"{kind.__module__ if module is None else module.__name__}.{name}"
        rotation = _recognition.recognize(where, original, forms)
        return build_replacement(name, original, rotation, module)

    return _classes.rotating_class(kind, replace, load_rotating, (kind, forms))


def load_rotating(kind: type, forms: tuple[Format, ...]) -> type:
    """Return a class that rotates by rope_xp where its base calls functions that rotate.

    The module of a class may hold other functions by now, which are then replaced.
    """
    return _rotating_class(kind, functions_called(kind), forms)
