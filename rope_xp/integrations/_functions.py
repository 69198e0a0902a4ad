"""The functions with which models of transformers rotate: found, recognised, and replaced."""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any, get_args

import torch

from rope_xp._arguments import given
from rope_xp._contract.caches import kept
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Layout
from rope_xp._dispatch import bound
from rope_xp._dispatch.bound import Asked
from rope_xp.angles import Angles
from rope_xp.integrations import _formats
from rope_xp.integrations._formats import Format, Tables
from rope_xp.rope import RoPE

Function = Callable[..., Any]
_NAME = re.compile(r"apply_\w*(rotary|rope)\w*")
_PAIRS, _TOKENS = 4, 6
# One rotation in float32 of numbers below 6.
_ROTATION = 1e-5


def used_by(function: FunctionType) -> dict[str, Function]:
    """Return the functions that rotate which a function calls, by their names.

    What a decorator has wrapped counts as part of the function.
    """
    return {
        name: value for part in _parts(function, set()) for name, value in _called(part).items()
    }


def _called(function: FunctionType) -> dict[str, Function]:
    scope = function.__globals__
    return {name: scope[name] for name in named(function) if callable(scope.get(name))}


def named(function: FunctionType) -> list[str]:
    """Return the names in a function that are such as functions that rotate have."""
    return sorted(filter(_NAME.fullmatch, set(names(function.__code__))))


def names(code: CodeType) -> Iterator[str]:
    """Yield what may name globals and attributes in code, that of functions inside too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names(constant)
        elif isinstance(constant, str):  # getattr(self, "rotary_emb")
            yield constant


def _parts(function: FunctionType, seen: set[FunctionType]) -> Iterator[FunctionType]:
    """Yield a function and the functions in its closure; some hold themselves."""
    if function not in seen:
        seen.add(function)
        yield function
        for cell in function.__closure__ or ():
            inside = _content(cell)
            if inside is not None:
                yield from _parts(inside, seen)


def _content(cell: CellType) -> FunctionType | None:
    try:
        inside = cell.cell_contents
    except ValueError:  # not filled, such as the class of super() while it is made
        return None
    return inside if isinstance(inside, FunctionType) else None


def rebound(function: FunctionType, replacements: dict[Function, Function]) -> FunctionType:
    """Return a copy of a function that calls others in place of some globals.

    The module's own globals stay as they are, so that other models of the type are not touched.
    """
    copies: dict[FunctionType, FunctionType] = {}

    def copied(part: FunctionType) -> FunctionType:
        if part in copies or not used_by(part):
            return copies.get(part, part)
        mine = {name: replacements.get(old, old) for name, old in _called(part).items()}
        cells = tuple(CellType() for _ in part.__closure__ or ())
        made = copies[part] = copy_of(part, part.__code__, mine, cells)
        for cell, old in zip(cells, part.__closure__ or (), strict=True):
            inside = _content(old)
            cell.cell_contents = old.cell_contents if inside is None else copied(inside)
        return made

    return copied(function)


def copy_of(
    function: FunctionType, code: CodeType, names: dict[str, Any], cells: tuple[CellType, ...]
) -> FunctionType:
    """Return a copy of a function that runs this code, where some globals have other values."""
    scope = {**function.__globals__, **names}
    # torch.compile would look the names up in the module that this key names.
    scope.pop("__name__")
    made = FunctionType(code, scope, function.__name__, function.__defaults__, cells or None)
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    made.__dict__.pop("__wrapped__")  # it is a copy, and wraps nothing
    made.__dict__.update(function.__dict__)
    return made


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
        heads_first = self.heads_first
        if unsqueeze_dim is not None:  # where the tables get their axis for the heads
            place = unsqueeze_dim - (table_ndim + 1 if unsqueeze_dim >= 0 else 0)
            if place not in (-3, -2):
                return None
            heads_first = place == -3
        return "b" * (ndim - 3) + ("hs" if heads_first else "sh") + "d" if ndim in (3, 4) else None


def own(function: Function) -> Function:
    """Return what a model computes by itself, where a module stands for a function.

    The package kernels makes modules of functions, and gives some a kernel of a GPU as ``forward``.
    """
    if isinstance(function, torch.nn.Module):
        return functools.partial(type(function).forward, function)
    return function


def recognise(name: str, function: Function, forms: Iterable[Format]) -> Rotation:
    """Return what a function does.

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
    made: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    arrays = tuple([torch.randn(shape, **made) for _ in range(trial.arrays)])
    angles = torch.rand((2,) * batch + (_TOKENS, _PAIRS), **made)
    tables = _formats.written(angles.cos(), angles.sin(), trial.form)
    try:
        theirs = function(*arrays, *tables)
    except (RuntimeError, TypeError, ValueError, IndexError):  # made for other shapes
        return False
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    ours = _rotated(arrays, tables, trial, axes)
    return len(theirs) == len(ours) and all(
        mine.shape == other.shape and bool(torch.allclose(mine, other, rtol=0, atol=_ROTATION))
        for mine, other in zip(ours, theirs, strict=True)
    )


# --- replacement ---------------------------------------------------------------------------------


def _rotated(
    xs: tuple[torch.Tensor, ...],
    tables: Tables,
    rotation: Rotation,
    axes: str,
    asked: Asked | None = None,
) -> tuple[torch.Tensor, ...]:
    """Rotate by a model's tables, and keep how for calls of the kind of ``asked``."""
    cos, sin = _formats.read(tables, rotation.form)
    made = _slice if torch.compiler.is_compiling() else _kept_slice  # Dynamo traces no cache
    rope = made(rotation, 2 * cos.shape[-1])
    if asked is not None:
        read, more = (given.pair, ()) if len(xs) > 1 else (given.single, (False,))
        return bound.run(asked, read, rope, *xs, cos, sin, axes, None, *more)
    angles = Angles(cos, sin, rope)
    if len(xs) == 1:
        return (angles.rotate(xs[0], axes=axes),)
    return angles.apply(*xs, axes=axes)


def _slice(rotation: Rotation, rotary_dim: int) -> RoPE:
    """Return a RoPE whose angles are those of tables: it says what they are applied to."""
    offset = -rotary_dim if rotation.trailing else 0
    return RoPE(layout=rotation.layout, rotary_dim=rotary_dim, rotary_offset=offset)


_kept_slice = kept(64)(_slice)


def replacement(name: str, function: Function, rotation: Rotation) -> Function:
    """Return a function that does the same, by rope_xp."""
    parameters = rotation.parameters
    n, plain = rotation.arrays, rotation.arrays + rotation.tables
    kind = _kept_kind(rotation)

    def rotate(*arguments: Any, **named: Any) -> Any:
        asked = None
        # Only where autograd keeps no tables: these have more columns than what is read of them.
        if kind is not None and not torch.is_grad_enabled():
            asked = _asked(kind, n, plain, arguments, named)
            known = None if asked is None else bound.known(asked)
            rotated = None if known is None else known(asked)
            if rotated is not None:
                return rotated if n > 1 else rotated[0]
        more = len(arguments) > len(parameters)
        if more or not named.keys() <= set(parameters[len(arguments) :]):
            return function(*arguments, **named)  # which says that it does not take them
        values = dict(zip(parameters, arguments, strict=False)) | named
        if not values.keys() >= set(parameters[n:plain]):
            return function(*arguments, **named)  # which says what is missing
        xs = tuple([values.pop(name, None) for name in parameters[:n]])
        tables = tuple([values.pop(name) for name in parameters[n:plain]])
        unsqueeze_dim = values.pop("unsqueeze_dim", rotation.unsqueeze_dim)
        axes = None
        if None not in map(_kind, xs) and all(value is None for value in values.values()):
            axes = rotation.axes(xs[0].ndim, tables[0].ndim, unsqueeze_dim)
        if axes is None or not _fit(xs, tables[0], axes):
            # Such as keys of which some shall not be rotated, or queries of the last tokens alone.
            return _like(function(*arguments, **named), xs)
        rotated = _rotated(xs, tables, rotation, axes, asked)
        return rotated if n > 1 else rotated[0]

    rotate.__name__ = name
    return rotate


@kept(64)
def _kept_kind(rotation: Rotation) -> object | None:
    """Return what stands for a rotation in keys, None if its tables do not begin with cosines."""
    return None if rotation.form == "complex" else object()


def _asked(
    kind: Hashable, n: int, plain: int, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Asked | None:
    """Return the key of a call, None where it is unusual.

    The tables stand in it as they are: what is read of them begins where they do, and how it lies
    follows from how they lie. Of all libraries only torch's is told so.
    """
    if len(arguments) < plain or not isinstance(arguments[0], torch.Tensor):
        return None
    if len(arguments) > plain or named:
        rest = arguments[plain:]
        if not all(type(x) is int for x in (*rest, *named.values())):
            return None
        kind = kind, rest, *named.items()
    tables = arguments[n], arguments[n + 1]
    return bound.ask(kind, arguments[:n], None, None, None, False, tables)


def _fit(xs: tuple[Any, ...], table: Any, axes: str) -> bool:
    """Return whether each array has the tokens that a table is for, one by one.

    While torch.jit traces, which makes tensors of sizes, no array does.
    """
    if torch.jit.is_tracing():
        return False
    tokens = axes.index("s")
    return all(x.shape[tokens] == table.shape[-2] for x in xs)


def _kind(x: Any) -> type | None:
    return None if x is None else type(x)


def _like(rotated: Any, xs: tuple[torch.Tensor | None, ...]) -> Any:
    """Return arrays in the dtype of x; tables of float32 have brought them there, to round once."""
    if isinstance(rotated, tuple):
        pairs = zip(rotated, xs, strict=True)
        return tuple(y if x is None else y.to(x.dtype) for y, x in pairs)
    return rotated.to(next(x.dtype for x in xs if x is not None))
