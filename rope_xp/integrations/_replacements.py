"""Recognise the functions by which models of transformers rotate q and k, and replace them."""

import functools
import inspect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args

import torch

from rope_xp._arguments.table_forms import COLUMN_FORMS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp._dispatch.find import find_backend
from rope_xp._dispatch.how import BOTH, ONE
from rope_xp.angles import Angles
from rope_xp.integrations import _formats, _norms
from rope_xp.integrations._drop_in import find_axes, load_rope
from rope_xp.integrations._formats import Format
from rope_xp.integrations._methods import Function


@dataclass(frozen=True)
class RecognizedRotation:
    parameters: tuple[str, ...]
    arrays: int
    form: Format
    layout: Layout
    trailing: bool  # the slice that it rotates ends the head
    heads_first: bool  # heads come before tokens, where no ``unsqueeze_dim`` says it
    unsqueeze_dim: int | None


def _own_function(function: Function) -> Function:
    """Return the model's own function where the package kernels has put a module in its place."""
    if isinstance(function, torch.nn.Module):  # whose own forward may be a kernel for a GPU
        return functools.partial(type(function).forward, function)
    return function


def recognize(name: str, function: Function, forms: Iterable[Format]) -> RecognizedRotation:
    """Return what a function does to random arrays; a RopeError if no layout does the same."""
    function = _own_function(function)
    parameters = inspect.signature(function).parameters
    unsqueeze = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else None
    names = tuple(parameters)
    arrays = 1 if names[1:2] == ("cos",) else 2
    slices = (True, False), (True, True), (False, False)  # partial, and then at which end
    for form, layout, heads_first, (partial, trailing), batch in itertools.product(
        forms, get_args(Layout), (True, False), slices, (True, False)
    ):
        trial = RecognizedRotation(names, arrays, form, layout, trailing, heads_first, unsqueeze)
        if _agrees(function, trial, partial, batch):
            return trial
    raise RopeError(
        f"cannot patch {name}: with tables like those of the model's rotary modules, it does not "
        "rotate in any known layout; patch(model, rotation=False) only makes the tables exact"
    )


def _agrees(function: Function, trial: RecognizedRotation, partial: bool, batch: bool) -> bool:
    """Return whether a function does what the trial says to random arrays."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    sizes = {"b": 2, "h": 3, "s": 6, "d": 8 + 4 * partial}
    axes = "b" * batch + ("hs" if trial.heads_first else "sh") + "d"
    shape = [sizes[axis] for axis in axes]
    xs = tuple([torch.randn(shape, **options) for _ in range(trial.arrays)])
    angles = torch.rand((2,) * batch + (6, 4), **options)
    tables = _formats.write(angles.cos(), angles.sin(), trial.form)
    try:
        theirs = function(*xs, *tables)
    except (RuntimeError, TypeError, ValueError, LookupError, NameError):  # it is for other shapes
        return False
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    return _formats.scaled_error(_rotate_arrays(trial, xs, tables, axes, None), theirs) <= 1


def _rotate_arrays(
    rotation: RecognizedRotation, xs: tuple[Any, ...], tables: _formats.Tables, axes: str, norm: Any
) -> tuple[torch.Tensor, ...]:
    cos, sin = _formats.read(tables, rotation.form)
    r = 2 * cos.shape[-1]
    offset = -r if rotation.trailing else 0
    rope = load_rope(torch.compiler.is_compiling(), rotation.layout, r, offset)
    angles = Angles(cos, sin, rope)
    if len(xs) == 1:
        return (angles.rotate(xs[0], axes=axes, norm=norm),)
    return angles.apply(*xs, axes=axes, norm=norm)


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
    rotated = _rotate_arrays(rotation, xs, tables, axes, norm)
    return rotated if n > 1 else rotated[0]


def build_replacement(
    name: str, original: Function, module: ModuleType | None, forms: Iterable[Format]
) -> Function:
    """Return a function that rotates as one of a model does, by rope_xp.

    A function that replaces the original in its module later on is called instead.
    """
    where = name if module is None else f"{module.__name__}.{name}"
    rotation = recognize(where, original, forms)
    function = _own_function(original)

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
