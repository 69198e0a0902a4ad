"""Patch diffusion transformers: exact tables from rotary modules, rotation on rope_xp's fast path.

Rotary modules and attention processors get a subclass of their class. That of a processor runs the
processor's own method. While it runs, the functions that rotate are rope_xp's, in this thread.
"""

import functools
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, cast

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.integrations import _classes
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations._diffusion.config import RotaryConfig, from_config
from rope_xp.integrations._diffusion.models import OWN_TABLES
from rope_xp.integrations._diffusion.rotations import INNER_ROTATIONS, ROTATIONS
from rope_xp.integrations._diffusion.tables import ROTARY_MODULES, TABLES_FROM_CALLER, are_close

Function = Callable[..., Any]

Location = tuple[str, str]
"""A module, and the name that a function has there."""

_CONFIG = "rope_xp_config"
"""The attribute of a patched rotary module that holds its RotaryConfig."""
_EMBEDDINGS = "diffusers.models.embeddings"
_NAME = re.compile(r"_?apply_\w*(rotary|rope)\w*|rope_apply")


def patch(model: torch.nn.Module) -> None:
    """Implement :func:`rope_xp.integrations.diffusers.patch`."""
    name = type(model).__name__
    parts = dict(_parts(model))
    if any(_classes.original(type(part)) for part in parts.values()):
        raise RopeError("the model is patched already; unpatch it first")
    config = _read_config(model, name)
    rotary = {path: part for path, part in parts.items() if _is_rotary_module(part)}
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        for path, part in rotary.items():
            _check_tables(path, part, config)
        rotating = {kind for kind in map(type, parts.values()) if _rotates(name, kind)}
    if not rotating:
        raise RopeError(f"cannot patch {name}: no function that rotates was found")
    if not rotary and config is not None and name not in TABLES_FROM_CALLER:
        raise RopeError(f"cannot patch {name}: the module that makes its tables is not known")
    kinds = {*rotating, *map(type, rotary.values())}
    for path, part in parts.items():
        if type(part) in kinds and isinstance(part, torch.nn.Module):
            _classes.check_forward(path, part, "patch")
    classes = {kind: load_processor(kind) for kind in rotating}
    classes |= {type(part): load_rotary_module(type(part)) for part in rotary.values()}
    for part in parts.values():
        if type(part) in rotating:
            _PATCHED.add(part)
        if type(part) in classes:
            _classes.exchange(part, classes[type(part)])
    for part in rotary.values():
        setattr(part, _CONFIG, config)


def unpatch(model: torch.nn.Module) -> None:
    """Implement :func:`rope_xp.integrations.diffusers.unpatch`."""
    patched = {path: part for path, part in _parts(model) if _classes.original(type(part))}
    for path, part in patched.items():
        _classes.check_own(path, part)
        if isinstance(part, torch.nn.Module):
            _classes.check_forward(path, part, "unpatch")
    for part in patched.values():
        _classes.exchange(part, type(part).__bases__[0])
        vars(part).pop(_CONFIG, None)
        _PATCHED.discard(part)
    if not _PATCHED:
        _remove_dispatchers()


def _parts(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model, and the other objects of diffusers in them: processors."""
    seen = set()
    for path, module in model.named_modules():
        yield path, module
        for attribute, value in vars(module).items():
            of_diffusers = type(value).__module__.startswith("diffusers.")
            if of_diffusers and not isinstance(value, dict) and id(value) not in seen:
                seen.add(id(value))
                yield f"{path}.{attribute}", value


def _read_config(model: torch.nn.Module, name: str) -> RotaryConfig | None:
    """Return the rotary embedding of a model; None where its tables stay its own."""
    if name in OWN_TABLES:
        return None
    try:
        return from_config(model)
    except (RopeConfigError, TypeError) as error:
        raise RopeError(f"cannot patch {name}: {error}") from error


# --- rotary modules ------------------------------------------------------------------------------


def _is_rotary_module(part: Any) -> bool:
    kind = type(part)
    return kind.__module__.startswith("diffusers.") and kind.__name__ in ROTARY_MODULES


def _check_tables(path: str, part: Any, config: RotaryConfig | None) -> None:
    """Compare the tables of a rotary module with those of its configuration.

    Raises
    ------
    RopeError
        If they differ.
    """
    row = ROTARY_MODULES[type(part).__name__]
    where = f"{path} ({type(part).__name__})"
    if config is None:
        raise RopeError(f"cannot patch {where}: its model has no RoPE")
    arguments = row.arguments(part, config)
    theirs = getattr(part, row.method)(*arguments)
    if not are_close(row.compute(config, part, *arguments), theirs):
        raise RopeError(f"cannot patch {where}: its tables are not those of {config.rope}")


@cached(256)
def load_rotary_module(kind: Any) -> type:
    """Return the subclass of a rotary module that computes its tables by rope_xp."""
    row = ROTARY_MODULES[kind.__name__]
    original = getattr(kind, row.method)

    @functools.wraps(original)
    def compute(self: Any, *arguments: Any, **named: Any) -> Any:
        # A new instance of this class has no configuration, and does what its base does.
        config = getattr(self, _CONFIG, None)
        if config is None:
            return original(self, *arguments, **named)
        with torch.no_grad():
            return row.compute(config, self, *arguments, **named)

    return _classes.subclass(kind, {row.method: compute}, load_rotary_module, (kind,))


# --- functions that rotate -----------------------------------------------------------------------


class _Replacements(threading.local):
    """The functions that replace those of diffusers in a thread, while a patched processor runs."""

    def __init__(self) -> None:  # torch.compile needs an attribute of the instance
        self.functions: Mapping[Location, Function] = {}


_ACTIVE = _Replacements()
_DISPATCHERS: dict[Location, Any] = {}
"""What stands in the modules of diffusers in place of functions."""
_PATCHED: weakref.WeakSet[Any] = weakref.WeakSet()
"""All patched processors. Without one, diffusers gets its functions back."""


def _load(location: Location) -> Any:
    module, name = location
    return getattr(sys.modules[module], name)


def _install_dispatcher(location: Location) -> None:
    """Let a function of a module look for its replacement in each call."""
    function = _load(location)
    if _DISPATCHERS.get(location) is function:
        return

    @functools.wraps(function)
    def dispatch(*arguments: Any, **named: Any) -> Any:
        replacement = _ACTIVE.functions.get(location)
        if replacement is None:
            return function(*arguments, **named)
        return replacement(function, *arguments, **named)

    _DISPATCHERS[location] = dispatch
    setattr(sys.modules[location[0]], location[1], dispatch)


def _remove_dispatchers() -> None:
    for location, dispatch in _DISPATCHERS.items():
        if _load(location) is dispatch:  # else somebody has replaced it since
            setattr(sys.modules[location[0]], location[1], dispatch.__wrapped__)
    _DISPATCHERS.clear()


# --- processors ----------------------------------------------------------------------------------


def _entry(kind: type) -> str:
    """Return the method that rotates: that of a call, and forward in most modules."""
    return "forward" if kind.__call__ is torch.nn.Module.__call__ else "__call__"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def find_functions(kind: type) -> tuple[dict[Location, str], dict[str, Function]]:
    """Return the functions by which a class rotates: those of modules, and those it defines itself.

    Those of modules come with the name by which their rotations are listed. A method has one as a
    global, or imports it from ``embeddings``.
    """
    functions: dict[Location, str] = {}
    inner: dict[str, Function] = {}
    for base in kind.__mro__:
        method = vars(base).get(_entry(kind))
        if not isinstance(method, FunctionType) or not base.__module__.startswith("diffusers."):
            continue
        method = cast("FunctionType", inspect.unwrap(method))
        for code in _codes(method.__code__):
            if _NAME.fullmatch(code.co_name):
                inner[code.co_name] = FunctionType(code, method.__globals__)
            for name in filter(_NAME.fullmatch, code.co_names):
                module = method.__module__ if name in method.__globals__ else _EMBEDDINGS
                function = getattr(sys.modules[module], name, None)
                if isinstance(function, FunctionType):
                    origin = function.__module__.rpartition(".")[2]
                    functions[module, name] = f"{origin}.{name}"
    return functions, inner


def _rotates(model: str, kind: type) -> bool:
    """Return whether a class rotates q and k, by functions that can be replaced.

    Raises
    ------
    RopeError
        If a function is not known, does something else, or cannot be replaced.
    """
    functions, inner = find_functions(kind)
    where = f"{model} ({kind.__name__})"
    for location, name in functions.items():
        if name not in ROTATIONS:
            raise RopeError(f"cannot patch {where}: rope_xp does not know {name}")
        rotations.check(where, name, _load(location), ROTATIONS[name])
    for name, function in inner.items():
        if kind.__name__ not in INNER_ROTATIONS:
            msg = (
                f"cannot patch {where}: its {_entry(kind)} defines {name}, by which it "
                "rotates; only an edit of its source could replace that"
            )
            raise RopeError(msg)
        rotation = INNER_ROTATIONS[kind.__name__].rotation
        rotations.check(where, name, function, [rotation])
    return bool(functions or inner)


def load_processor(kind: type) -> type:
    """Return the subclass of a processor that rotates by rope_xp, and install its dispatchers."""
    functions, inner = find_functions(kind)
    for location in (*functions, *(_attention_functions(kind) if inner else ())):
        _install_dispatcher(location)
    return _processor_class(kind)


def _attention_functions(kind: type) -> list[Location]:
    """Return the functions that a processor with an inner rotation hands q and k."""
    return [(kind.__module__, name) for name in INNER_ROTATIONS[kind.__name__].functions]


@cached(256)
def _processor_class(kind: Any) -> type:
    entry = _entry(kind)
    method = getattr(kind, entry)
    functions, inner = find_functions(kind)
    run = _run_without_tables(kind, method) if inner else _run_replacing(functions, method)

    def create(cls: Any, *_: Any, **__: Any) -> Any:
        processor = object.__new__(cls)
        _PATCHED.add(processor)
        return processor

    own = {entry: functools.wraps(method)(run), "__new__": create}
    return _classes.subclass(kind, own, load_processor, (kind,))


def _run_replacing(functions: Mapping[Location, str], method: Function) -> Function:
    """Return a method that runs another one with the functions it calls replaced."""
    replacements = {
        location: functools.partial(rotations.rotate_like, ROTATIONS[name])
        for location, name in functions.items()
    }

    def run(*arguments: Any, **named: Any) -> Any:
        return _run(replacements, method, *arguments, **named)

    return run


def _run_without_tables(kind: type, method: Function) -> Function:
    """Return a method that runs another one without tables, and rotates q and k where they go."""
    inner, locations = INNER_ROTATIONS[kind.__name__], _attention_functions(kind)
    place = list(inspect.signature(method).parameters).index(inner.argument) - 2

    def run(self: Any, attn: Any, *arguments: Any, **named: Any) -> Any:
        by_position = len(arguments) > place
        tables = arguments[place] if by_position else named.get(inner.argument)
        # Without its dispatcher nothing would rotate. Wan hands on the keys of an image too, which
        # are not to be rotated.
        installed = all(_load(location) is _DISPATCHERS.get(location) for location in locations)
        if tables is None or not installed or getattr(attn, "add_k_proj", None) is not None:
            return method(self, attn, *arguments, **named)
        if by_position:
            arguments = (*arguments[:place], None, *arguments[place + 1 :])
        else:
            named[inner.argument] = None
        rotate = functools.partial(rotations.rotate_first, inner.rotation, tables)
        return _run(dict.fromkeys(locations, rotate), method, self, attn, *arguments, **named)

    return run


def _run(
    replacements: Mapping[Location, Function], method: Function, *args: Any, **named: Any
) -> Any:
    before = _ACTIVE.functions
    _ACTIVE.functions = replacements
    try:
        return method(*args, **named)
    finally:
        _ACTIVE.functions = before
