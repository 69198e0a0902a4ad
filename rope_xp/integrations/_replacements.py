"""Replace the functions by which models of transformers rotate q and k."""

from collections.abc import Hashable, Iterable
from types import ModuleType
from typing import Any

import torch

from rope_xp._arguments import parse_tables
from rope_xp._core.call import Call
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.recent_calls import GivenTables, recall
from rope_xp.integrations import _formats, _norms, _recognition
from rope_xp.integrations._drop_in import find_axes
from rope_xp.integrations._formats import Format, Tables
from rope_xp.integrations._methods import Function
from rope_xp.integrations._recognition import RecognizedRotation


class _UnusualCallError(Exception):
    """The model's own function takes this call: it has more than arrays and tables."""


def _operands(
    rotation: RecognizedRotation, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[torch.Tensor, ...], Tables, str]:
    """Return the arrays of a call, its tables and the axes of the arrays."""
    parameters, n = rotation.parameters, rotation.arrays
    plain = n + (1 if rotation.form == "complex" else 2)
    if len(arguments) > len(parameters) or not named.keys() <= set(parameters[len(arguments) :]):
        raise _UnusualCallError
    values = dict(zip(parameters, arguments, strict=False)) | named
    xs = tuple([values.pop(name, None) for name in parameters[:n]])
    tables = tuple([values.pop(name, None) for name in parameters[n:plain]])
    unsqueeze_dim = values.pop("unsqueeze_dim", rotation.unsqueeze_dim)
    # Such as keys of which some shall not be rotated. While torch.jit traces, sizes are tensors.
    tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]  # of torch
    others = any(value is not None for value in values.values())
    if tracing or others or any(value is None for value in (*xs, *tables)):
        raise _UnusualCallError
    axes = find_axes(xs[0].ndim, tables[0].ndim, unsqueeze_dim, rotation.heads_first)
    # Some calls have queries of the last tokens alone.
    if axes is None or any(x.shape[axes.index("s")] != tables[0].shape[-2] for x in xs):
        raise _UnusualCallError
    return xs, tables, axes


def _parse(rotation: RecognizedRotation, norm: Any, *call: Any) -> Call:
    xs, tables, axes = _operands(rotation, *call)
    cos, sin = _formats.read(tables, rotation.form)
    rope = rotation.rope(2 * cos.shape[-1])
    return parse_tables.rotate(rope, xs, cos, sin, axes, None, False, norm)


def _find_cached_key(
    rotation: RecognizedRotation, key: object, arguments: tuple[Any, ...], named: Any
) -> Hashable | None:
    """Return what stands for all options of a call in the call cache, None if none does."""
    plain = rotation.arrays + 2
    if rotation.form == "complex" or len(arguments) < plain or not torch.is_tensor(arguments[0]):
        return None
    if len(arguments) == plain and not named:
        return key
    rest = arguments[plain:]
    if not all(type(x) is int for x in (*rest, *named.values())):
        return None
    return (key, rest, *named.items())


def build_replacement(
    name: str, original: Function, module: ModuleType | None, forms: Iterable[Format]
) -> Function:
    """Return a function that rotates as one of a model does, by rope_xp.

    A function that replaces the original in its module later on is called instead.
    """
    where = name if module is None else f"{module.__name__}.{name}"
    rotation = _recognition.recognize(where, original, forms)
    function = _recognition.own_function(original)
    key = object()  # identifies the rotation in signatures

    def rotate(*inputs: Any, **named: Any) -> Any:
        if module is not None and getattr(module, name) is not original:
            return _call_cast(getattr(module, name), inputs, named)
        n = rotation.arrays
        xs, norm = _norms.split_norm(inputs[:n])
        arguments, cached_key = xs + inputs[n:], None
        # Autograd keeps tables, of which those of a model have more columns than are read.
        if not torch.is_grad_enabled():
            cached_key = _find_cached_key(rotation, key, arguments, named)
        try:
            if cached_key is None:
                operands = _operands(rotation, arguments, named)
                results = _recognition.rotate(rotation, *operands, norm)
            else:
                # The columns that are read begin where the model's tables begin, and their strides
                # follow from the strides of these, so the tables stand in the signature as they
                # are. Only torch's library knows that.
                tables = GivenTables(*arguments[n : n + 2])
                options = cached_key, xs, tables, None, None, False, norm
                cached = recall(*options)
                call = rotation, norm, arguments, named
                results = cached or call_cache.run(*options, _parse, *call)
        except _UnusualCallError:
            arguments = _norms.normalize(inputs)
            return _cast_like(rotation, function(*arguments, **named), arguments, named)
        return results if rotation.arrays > 1 else results[0]

    rotate.__name__ = name
    rotate.replaces = original, rotation  # type: ignore[attr-defined]  # see replace_rotations
    return rotate


def _call_cast(function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function with tables in the dtype of q, which other functions expect."""
    arguments = _norms.normalize(arguments)
    dtype = arguments[0].dtype

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and not x.is_complex() else x

    return function(*map(cast, arguments), **{name: cast(x) for name, x in named.items()})


def _cast_like(rotation: RecognizedRotation, results: Any, arguments: Any, named: Any) -> Any:
    """Return results in the dtypes of x. Tables of float32 have promoted them, to round once."""
    values = dict(zip(rotation.parameters, arguments, strict=False)) | named
    xs = [values.get(name) for name in rotation.parameters[: rotation.arrays]]
    if isinstance(results, tuple):
        pairs = zip(results, xs, strict=True)
        return tuple(y if x is None else y.to(x.dtype) for y, x in pairs)
    return results.to(next(x.dtype for x in xs if x is not None))
