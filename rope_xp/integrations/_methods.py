"""Find the functions that rotate in the bytecode of methods, and copy methods to call others."""

import dis
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError

Function = Callable[..., Any]
_NAME = re.compile(r"_?apply_\w*(rotary|rope)\w*|rope_apply")
_TABLES = frozenset({"cos", "sin", "freqs_cis"})  # variables of code that reads tables
_TUPLES = _TABLES | {"position_embeddings", "rotary_pos_emb"}  # parameters that take them
# Classes that have such names and rotate nothing by the tables of a patched module.
_HARMLESS = {
    "lasr.modeling_lasr.LasrEncoder",  # passes them on to its attention
    "gemma4.modeling_gemma4.Gemma4TextModel",  # passes on those of the last tokens
    "gemma4_unified.modeling_gemma4_unified.Gemma4UnifiedTextModel",
    # The tables of these are of modules that are not patched.
    "esmfold2.modeling_esmfold2.EsmFold2DiffusionModule",
    "wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention",
}


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inner_codes(constant)


def _rotation_names(function: FunctionType) -> list[str]:
    names = {name for code in _inner_codes(function.__code__) for name in code.co_names}
    return sorted(filter(_NAME.fullmatch, names))


def _find_rotations(function: FunctionType) -> dict[str, tuple[Function, dict[str, Any] | None]]:
    """Return the functions that rotate which a function calls, and the globals that hold each.

    None holds a function that it defines itself.
    """
    scope = function.__globals__
    rotations: dict[str, tuple[Function, dict[str, Any] | None]] = {}
    for name in _rotation_names(function):
        holder = scope
        if name not in scope and scope["__name__"].startswith("diffusers."):
            # The method imports it from there.
            holder = vars(sys.modules["diffusers.models.embeddings"])
        if callable(holder.get(name)):
            rotations[name] = holder[name], holder
    _, *codes = _inner_codes(function.__code__)
    for code in codes:
        if _NAME.fullmatch(code.co_name):
            rotations[code.co_name] = _load_local(code, scope["__name__"]), None
    return rotations


@cached(64)
def _load_local(code: CodeType, module: str) -> FunctionType:
    cells = tuple(CellType() for _ in code.co_freevars)
    return FunctionType(code, vars(sys.modules[module]), closure=cells)


def rotations_called(function: FunctionType) -> dict[str, Function]:
    """Return the functions that rotate which a function, or one it wraps, calls or defines."""
    return {
        name: rotation
        for part in wrapped_functions(function)
        for name, (rotation, _) in _find_rotations(part).items()
    }


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


def rotating_methods(kind: type) -> dict[str, FunctionType]:
    """Return the methods of a class that call a function that rotates, inherited ones included.

    A RopeError says if one of them is overridden: what super() would call stays as it is.
    """
    methods: dict[str, FunctionType] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            rotates = isinstance(member, FunctionType) and rotations_called(member)
            if methods.pop(name, None) is not None and not rotates:
                raise RopeError(
                    f"cannot patch {kind.__name__}: {base.__name__} overrides {name}, which "
                    "rotates q and k in its base class"
                )
            if rotates:
                methods[name] = member
    return methods


def functions_called(kind: type) -> tuple[tuple[str, Function], ...]:
    """Return the functions that rotate which the methods of a class call, with their names."""
    methods = rotating_methods(kind).values()
    return tuple(call for method in methods for call in rotations_called(method).items())


def check_readers(kind: type) -> None:
    """Check that the methods of a class which read tables call functions that rotate."""
    # Others would read tables of float32 in a model of 16 bits.
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.removeprefix("transformers.models.") in _HARMLESS:
        return
    for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        for name, member in vars(base).items():
            method = getattr(member, "__func__", member)  # of a static method
            if not isinstance(method, FunctionType) or rotations_called(method):
                continue
            parts = wrapped_functions(method)
            if reader := next((text for part in parts for text in _describe_readers(part)), None):
                raise RopeError(
                    f"cannot patch {base.__name__}.{name}: {reader}, and no function that is "
                    f"replaced rotates there"
                )


def _describe_readers(function: FunctionType) -> Iterator[str]:
    for code in _inner_codes(function.__code__):
        for variable in (*code.co_varnames, *code.co_cellvars):
            if variable in _TABLES:
                yield f"it reads {variable}"
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType):
                inner = called.__code__
                if not _TUPLES.isdisjoint(inner.co_varnames[: inner.co_argcount]):
                    yield f"it calls {name}"


def check_order(kind: type, names: re.Pattern[str]) -> None:
    """Check that methods that rotate do so after they read attributes, and never leave it out."""
    methods = [part for m in rotating_methods(kind).values() for part in wrapped_functions(m)]
    for method in filter(_find_rotations, methods):
        code = list(dis.get_instructions(method))
        jumps = [(i.offset, i.argval) for i in code if i.opcode in dis.hasjrel + dis.hasjabs]
        reads = [i.offset for i in code if names.fullmatch(str(i.argval))]
        calls = [i.offset for i in code if _NAME.fullmatch(str(i.argval))]
        passed = [(start, call) for start, end in jumps for call in calls if start < call < end]
        always = all(any(start < read < call for read in reads) for start, call in passed)
        if not (reads and calls) or reads[-1] > calls[-1] or not always:
            raise RopeError(f"{kind.__name__} does not always rotate after it")


def replace_rotations(
    function: FunctionType, replace: Callable[[str, Function, ModuleType | None], Function]
) -> FunctionType:
    """Return a copy of a function that calls replacements of functions that rotate.

    ``replace`` takes the name of a function, itself and the module that holds it, None where a
    method defines it; ``replaces`` of a replacement identifies it. Replacements stand under new
    names next to the functions, so that other models are not touched.
    """
    copies: dict[FunctionType, FunctionType] = {}

    def install(scope: dict[str, Any], name: str, replacement: Any) -> str:
        names = (f"_rope_xp_{name}_{i}" for i in itertools.count())
        key = replacement.replaces
        free = next(new for new in names if new not in scope or scope[new].replaces == key)
        scope.setdefault(free, replacement)
        return free

    def copy(part: FunctionType) -> FunctionType:
        if part in copies or not rotations_called(part):
            return copies.get(part, part)
        new_names = {}
        for name, (rotation, scope) in _find_rotations(part).items():
            module = None if scope is None else sys.modules.get(scope["__name__"])
            replacement = replace(name, rotation, module)
            new_names[name] = install(scope or part.__globals__, name, replacement)
        cells = tuple([CellType() for _ in part.__closure__ or ()])
        code, defaults = _rename(part.__code__, new_names), part.__defaults__
        copied = FunctionType(code, part.__globals__, part.__name__, defaults, cells or None)
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


def _call_replacement(*arguments: Any, **named: Any) -> Any:
    return _replacement(*arguments, **named)  # type: ignore[name-defined]  # noqa: F821  # see _rename


def _rename(code: CodeType, new_names: dict[str, str]) -> CodeType:
    """Return code that calls other globals, also in place of functions that it defines."""

    def rename_constant(constant: Any) -> Any:
        if not isinstance(constant, CodeType):
            return constant
        if constant.co_name not in new_names:
            return _rename(constant, new_names)
        return _call_replacement.__code__.replace(
            co_names=(new_names[constant.co_name],), co_freevars=constant.co_freevars
        )

    return code.replace(
        co_names=tuple(new_names.get(name, name) for name in code.co_names),
        co_consts=tuple(map(rename_constant, code.co_consts)),
    )
