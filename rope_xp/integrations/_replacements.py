"""Replace the functions by which models of transformers rotate q and k."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS
from rope_xp._dispatch.find import find_backend
from rope_xp._dispatch.how import BOTH, ONE
from rope_xp.integrations import _norms, _recognition
from rope_xp.integrations._drop_in import find_axes
from rope_xp.integrations._formats import Format
from rope_xp.integrations._methods import Function
from rope_xp.integrations._recognition import RecognizedRotation


def _rotate(
    rotation: RecognizedRotation, norm: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return what a call of a model's function returns; None if only that function takes it."""
    parameters, n = rotation.parameters, rotation.arrays
    plain = n + (1 if rotation.form == "complex" else 2)
    if len(arguments) > len(parameters) or not named.keys() <= set(parameters[len(arguments) :]):
        return None
    values = dict(zip(parameters, arguments, strict=False)) | named
    xs = tuple([values.pop(name, None) for name in parameters[:n]])
    tables = tuple([values.pop(name, None) for name in parameters[n:plain]])
    unsqueeze_dim = values.pop("unsqueeze_dim", rotation.unsqueeze_dim)
    # Such as keys of which some shall not be rotated. While torch.jit traces, sizes are tensors.
    tracing: bool = torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]  # of torch
    others = any(value is not None for value in values.values())
    if tracing or others or any(value is None for value in (*xs, *tables)):
        return None
    axes = find_axes(xs[0].ndim, tables[0].ndim, unsqueeze_dim, rotation.heads_first)
    # Some calls have queries of the last tokens alone.
    if axes is None or any(x.shape[axes.index("s")] != tables[0].shape[-2] for x in xs):
        return None
    backend = find_backend(xs[0])
    if rotation.form in COLUMN_FORMS and backend is not None:
        columns = COLUMN_FORMS.index(rotation.form)
        r = tables[0].shape[-1] if columns else 2 * tables[0].shape[-1]
        slice_ = rotation.layout, r, -r if rotation.trailing else 0, columns
        how = ONE if n == 1 else BOTH
        arrays: Any = *xs[:1], xs[-1], *tables, axes, None, norm, None, None, how
        results = backend.rotate_by_tables(*slice_, *arrays)
        if results is not None:
            return results
    rotated = _recognition.rotate(rotation, xs, tables, axes, norm)
    return rotated if n > 1 else rotated[0]


def build_replacement(
    name: str, original: Function, module: ModuleType | None, forms: Iterable[Format]
) -> Function:
    """Return a function that rotates as one of a model does, by rope_xp.

    A function that replaces the original in its module later on is called instead.
    """
    where = name if module is None else f"{module.__name__}.{name}"
    rotation = _recognition.recognize(where, original, forms)
    function = _recognition.own_function(original)

    def rotate(*inputs: Any, **named: Any) -> Any:
        current = original if module is None else getattr(module, name)
        if current is not original:
            return _call_cast(current, inputs, named)
        n = rotation.arrays
        xs, norm = _norms.split_norm(inputs[:n])
        results = _rotate(rotation, norm, xs + inputs[n:], named)
        return _call_cast(function, inputs, named) if results is None else results

    rotate.__name__ = name
    rotate.replaces = original, rotation  # type: ignore[attr-defined]  # see replace_rotations
    return rotate


def _call_cast(function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function of the model's with tables in the dtype of q, which it expects."""
    arguments = _norms.normalize(arguments)
    dtype = next(x.dtype for x in (*arguments, *named.values()))

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and not x.is_complex() else x

    return function(*map(cast, arguments), **{name: cast(x) for name, x in named.items()})
