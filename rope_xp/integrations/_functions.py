"""The functions by which models of transformers rotate q and k: found, recognised, and replaced."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, get_args

import torch

from rope_xp._arguments import parse_tables
from rope_xp._core.caches import cached
from rope_xp._core.call import Call
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp.angles import Angles
from rope_xp.integrations import _formats
from rope_xp.integrations._drop_in import axes_of, heads_before_tokens
from rope_xp.integrations._formats import Format, Tables
from rope_xp.rope import RoPE

Function = Callable[..., Any]
_NAME = re.compile(r"apply_\w*(rotary|rope)\w*")
_PAIRS, _TOKENS = 4, 6
# One rotation in float32 of numbers below 6.
_TOLERANCE = 1e-5


# --- the functions that a method calls -----------------------------------------------------------


def rotation_names(function: FunctionType) -> list[str]:
    """Return the names in a function that functions which rotate usually have."""
    names = {name for code in inner_codes(function.__code__) for name in code.co_names}
    return sorted(filter(_NAME.fullmatch, names))


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield code and that of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from inner_codes(constant)


def rotations_called(function: FunctionType) -> dict[str, Function]:
    """Return the functions that rotate which a function calls, by name.

    A decorator's wrapper calls what the function inside calls.
    """
    return {
        name: value
        for part in wrapped_functions(function)
        for name, value in _globals_called(part).items()
    }


def _globals_called(function: FunctionType) -> dict[str, Function]:
    scope = function.__globals__
    return {name: scope[name] for name in rotation_names(function) if callable(scope.get(name))}


def wrapped_functions(function: FunctionType) -> list[FunctionType]:
    """Return a function and those in its closure, as decorators leave them."""
    functions = [function]
    for part in functions:  # which grows: some closures hold their own function
        contents = map(_cell_function, part.__closure__ or ())
        functions += [inner for inner in contents if inner is not None and inner not in functions]
    return functions


def _cell_function(cell: CellType) -> FunctionType | None:
    try:
        content = cell.cell_contents
    except ValueError:  # not filled, such as the class of super() while it is made
        return None
    return content if isinstance(content, FunctionType) else None


def rename_rotations(
    function: FunctionType, new_name: Callable[[dict[str, Any], str], str]
) -> FunctionType:
    """Return a copy of a function that calls functions which rotate by other names.

    ``new_name`` says by which, given a module's globals and a name in them. The module's own names
    stay as they are, so that other models of the type are not touched, and all else that the copy
    calls is what the module holds when it is called.
    """
    copies: dict[FunctionType, FunctionType] = {}

    def copy(part: FunctionType) -> FunctionType:
        if part in copies or not rotations_called(part):
            return copies.get(part, part)
        names = {name: new_name(part.__globals__, name) for name in _globals_called(part)}
        code, cells = _rename(part.__code__, names), [CellType() for _ in part.__closure__ or ()]
        copied = FunctionType(
            code, part.__globals__, part.__name__, part.__defaults__, tuple(cells) or None
        )
        copies[part] = copied
        copied.__kwdefaults__ = part.__kwdefaults__
        functools.update_wrapper(copied, part)
        copied.__dict__.pop("__wrapped__")  # it is a copy, and wraps nothing
        copied.__dict__.update(part.__dict__)
        for cell, original in zip(cells, part.__closure__ or (), strict=True):
            inner = _cell_function(original)
            cell.cell_contents = original.cell_contents if inner is None else copy(inner)
        return copied

    return copy(function)


def _rename(code: CodeType, names: dict[str, str]) -> CodeType:
    constants = (_rename(c, names) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(constants),
    )


# --- recognition ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotation:
    """What a function does, found by calling it."""

    parameters: tuple[str, ...]
    arrays: int
    form: Format
    layout: Layout
    trailing: bool
    """Whether the slice that it rotates ends the head."""
    heads_first: bool
    """Whether heads come before tokens, where no ``unsqueeze_dim`` says it."""
    unsqueeze_dim: int | None

    @property
    def tables(self) -> int:
        """How many tables follow the arrays."""
        return 1 if self.form == "complex" else 2

    def axes(self, ndim: int, table_ndim: int, unsqueeze_dim: int | None) -> str | None:
        """Return the names of the axes of an array; None where tables are laid out otherwise."""
        if unsqueeze_dim is None:
            return axes_of(ndim, self.heads_first)
        return axes_of(ndim, heads_before_tokens(table_ndim, unsqueeze_dim))

    def rope(self, rotary_dim: int) -> RoPE:
        """Return a RoPE for angles from tables: it says which components they rotate."""
        make = _rope if torch.compiler.is_compiling() else _cached_rope  # Dynamo traces no cache
        return make(self.layout, rotary_dim, -rotary_dim if self.trailing else 0)


def _rope(layout: Layout, rotary_dim: int, rotary_offset: int) -> RoPE:
    return RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=rotary_offset)


_cached_rope = cached(64)(_rope)


def own_function(function: Function) -> Function:
    """Return what a model computes by itself, where a module stands for a function.

    The package kernels makes modules of functions, and gives some a kernel of a GPU as ``forward``.
    """
    if isinstance(function, torch.nn.Module):
        return functools.partial(type(function).forward, function)
    return function


def recognise(name: str, function: Function, forms: Iterable[Format]) -> Rotation:
    """Return what a function does to random arrays.

    Raises
    ------
    RopeError
        If it does not rotate as any layout does.
    """
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    unsqueeze_dim = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in names else None
    arrays = 1 if names[1:2] == ("cos",) else 2
    for form, layout, heads_first, passes, batch in itertools.product(
        forms, get_args(Layout), (True, False), (True, False), (True, False)
    ):
        for trailing in (False, True) if passes else (False,):
            trial = Rotation(names, arrays, form, layout, trailing, heads_first, unsqueeze_dim)
            if _agrees(function, trial, passes, batch):
                return trial
    msg = (
        f"cannot patch {name}: given tables such as those of the model's rotary modules, it does "
        "not rotate as any layout does"
    )
    raise RopeError(msg)


def _agrees(function: Function, trial: Rotation, passes: bool, batch: bool) -> bool:
    """Return whether a function does what the trial says to random arrays."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"b": 2, "h": 3, "s": _TOKENS, "d": 2 * _PAIRS + 4 * passes}
    axes = "b" * batch + ("hs" if trial.heads_first else "sh") + "d"
    shape = [sizes[a] for a in axes]
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    xs = tuple([torch.randn(shape, **options) for _ in range(trial.arrays)])
    angles = torch.rand((2,) * batch + (_TOKENS, _PAIRS), **options)
    tables = _formats.written(angles.cos(), angles.sin(), trial.form)
    try:
        theirs = function(*xs, *tables)
    except (RuntimeError, TypeError, ValueError, IndexError):  # it is for other shapes
        return False
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    ours = _rotate(trial, xs, tables, axes)
    return len(theirs) == len(ours) and all(
        a.shape == b.shape and bool(torch.allclose(a, b, rtol=0, atol=_TOLERANCE))
        for a, b in zip(ours, theirs, strict=True)
    )


# --- replacement ---------------------------------------------------------------------------------


class _Unusual(Exception):  # noqa: N818  # no error: the model's own function takes the call
    """A call that says more than which arrays to rotate by which tables."""


Operands = tuple[tuple[torch.Tensor, ...], Tables, str]
"""Arrays, tables, and the axes of the arrays."""


def _operands(
    rotation: Rotation, arguments: tuple[Any, ...], named: dict[str, Any]
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


def _rotate(
    rotation: Rotation, xs: tuple[torch.Tensor, ...], tables: Tables, axes: str
) -> tuple[torch.Tensor, ...]:
    cos, sin = _formats.read(tables, rotation.form)
    angles = Angles(cos, sin, rotation.rope(2 * cos.shape[-1]))
    if len(xs) == 1:
        return (angles.rotate(xs[0], axes=axes),)
    return angles.apply(*xs, axes=axes)


def _parse(rotation: Rotation, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Return the checked call of a rotation without gradients."""
    operands = _operands(rotation, arguments, named)
    if operands is None:
        raise _Unusual
    xs, tables, axes = operands
    cos, sin = _formats.read(tables, rotation.form)
    rope = rotation.rope(2 * cos.shape[-1])
    if len(xs) == 1:
        return parse_tables.rotate(rope, xs[0], cos, sin, axes, None, False)
    return parse_tables.apply(rope, xs[0], xs[1], cos, sin, axes, None)


def _signature(
    rotation: Rotation, key: Hashable, arguments: tuple[Any, ...], named: dict[str, Any]
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


def replacement(
    name: str, original: Function, rotation: Rotation, module: ModuleType | None = None
) -> Function:
    """Return a function that does the same, by rope_xp.

    If a module is given, what somebody puts in place of the original there is called instead.
    """
    function = own_function(original)
    key = object()  # what stands for the rotation in signatures

    def rotate(*arguments: Any, **named: Any) -> Any:
        if module is not None and getattr(module, name) is not original:
            dtype = arguments[0].dtype  # what functions expect of the tables of a model

            def cast(x: Any) -> Any:
                return x.to(dtype) if isinstance(x, torch.Tensor) and not x.is_complex() else x

            theirs = getattr(module, name)
            return theirs(*map(cast, arguments), **{k: cast(x) for k, x in named.items()})
        results = signature = None
        # Autograd keeps tables, of which those of a model have more columns than are read.
        if not torch.is_grad_enabled():
            signature = _signature(rotation, key, arguments, named)
        if signature is not None:
            try:
                results = call_cache.run(signature, _parse, rotation, arguments, named)
            except _Unusual:
                results = None
        if results is None:
            operands = _operands(rotation, arguments, named)
            if operands is None:
                return _cast_like(rotation, function(*arguments, **named), arguments, named)
            results = _rotate(rotation, *operands)
        return results if rotation.arrays > 1 else results[0]

    rotate.__name__ = name
    return rotate


def _cast_like(
    rotation: Rotation, results: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return results in the dtypes of x. Tables of float32 have promoted them, to round once."""
    values = dict(zip(rotation.parameters, arguments, strict=False)) | named
    xs = [values.get(name) for name in rotation.parameters[: rotation.arrays]]
    if isinstance(results, tuple):
        pairs = zip(results, xs, strict=True)
        return tuple(y if x is None else y.to(x.dtype) for y, x in pairs)
    return results.to(next(x.dtype for x in xs if x is not None))


def install(scope: dict[str, Any], name: str, forms: Iterable[Format]) -> str:
    """Put the replacement of a global beside it; return the name that it has there.

    Raises
    ------
    RopeError
        If the global does not rotate as any layout does.
    """
    original, module = scope[name], sys.modules.get(scope["__name__"])
    rotation = recognise(f"{scope['__name__']}.{name}", own_function(original), forms)
    for i in itertools.count():
        new = f"_rope_xp_{name}_{i}"
        if new not in scope:
            scope[new] = replacement(name, original, rotation, module)
            scope[new].replaces = original, rotation
        if scope[new].replaces == (original, rotation):
            return new
    raise AssertionError  # count() does not end
