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
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from diffusers.models import embeddings

from rope_xp._contract.caches import kept
from rope_xp._contract.errors import RopeConfigError, RopeError
from rope_xp.integrations import _classes, _rotary
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations._diffusion.config import RotaryConfig, from_config
from rope_xp.integrations._diffusion.models import OWN_TABLES
from rope_xp.integrations._diffusion.rotations import INNER_ROTATIONS, ROTATIONS, InnerRotation
from rope_xp.integrations._diffusion.tables import ROTARY_MODULES, TABLES_FROM_CALLER

Function = Callable[..., Any]

_CONFIG = "rope_xp_config"
"""The attribute of a patched rotary module that holds its RotaryConfig."""
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
        rotating = {kind for kind in map(type, parts.values()) if _rotates(kind)}
    if not rotating:
        raise RopeError(f"cannot patch {name}: no function that rotates was found")
    if not rotary and config is not None and name not in TABLES_FROM_CALLER:
        raise RopeError(f"cannot patch {name}: the module that makes its tables is not known")
    classes = {kind: load_processor(kind) for kind in rotating}
    classes |= {type(part): load_rotary_module(type(part)) for part in rotary.values()}
    for path, part in parts.items():
        if type(part) in classes and isinstance(part, torch.nn.Module):
            _classes.check_forward(path, part, "patch")
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
        _restore_functions()


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
    if not _are_close(row.compute(config, part, *arguments), theirs):
        raise RopeError(f"cannot patch {where}: its tables are not those of {config.rope}")


def _are_close(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(_are_close, ours, theirs))
    # Buffers of a model that was cast are rounded, and Lumina 2 has complex128; these are not.
    if (ours.shape, ours.is_complex()) != (theirs.shape, theirs.is_complex()):
        return False
    tolerance = max(_rotary.TABLES, torch.finfo(theirs.dtype).eps)
    theirs = theirs.to(device=ours.device, dtype=ours.dtype)
    return bool(torch.allclose(ours, theirs, rtol=0, atol=tolerance))


@kept(256)
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
        self.functions: dict[str, Function] = {}


_ACTIVE = _Replacements()
_ORIGINALS: dict[tuple[ModuleType, str], Function] = {}
"""The functions of diffusers that ask for a replacement, by the module and name that lead there."""
_PATCHED: weakref.WeakSet[Any] = weakref.WeakSet()
"""All patched processors. Without one, diffusers gets its functions back."""


def _key(module: ModuleType, name: str) -> str:
    """Return the module and name of a function, by which rotations are listed."""
    return f"{getattr(module, name).__module__.rpartition('.')[2]}.{name}"


def _replace_function(module: ModuleType, name: str) -> None:
    """Let a function of a module look for its replacement in each call."""
    if (module, name) in _ORIGINALS:
        return
    key, function = _key(module, name), getattr(module, name)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        replacement = _ACTIVE.functions.get(key)
        if replacement is None:
            return function(*arguments, **named)
        return replacement(function, *arguments, **named)

    _ORIGINALS[module, name] = function
    setattr(module, name, call)


def _restore_functions() -> None:
    for (module, name), function in _ORIGINALS.items():
        # Leave a function that somebody else has put there since.
        if getattr(getattr(module, name), "__wrapped__", None) is function:
            setattr(module, name, function)
    _ORIGINALS.clear()


# --- processors ----------------------------------------------------------------------------------


def _entry(kind: type) -> str:
    """Return the method that rotates: processors are called, attention modules run forward."""
    return "forward" if issubclass(kind, torch.nn.Module) else "__call__"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _find_functions(kind: type) -> tuple[dict[str, tuple[ModuleType, str]], dict[str, Function]]:
    """Return the functions that rotate which a class calls: those of modules, and its inner ones.

    A method finds a function of a module by the globals, or imports it from ``embeddings``.
    """
    functions, inner = {}, {}
    for base in kind.__mro__:
        method = vars(base).get(_entry(kind))
        if not isinstance(method, FunctionType) or not base.__module__.startswith("diffusers."):
            continue
        for code in _codes(method.__code__):
            if _NAME.fullmatch(code.co_name):
                inner[code.co_name] = FunctionType(code, method.__globals__)
            for name in filter(_NAME.fullmatch, code.co_names):
                own = name in method.__globals__
                module = sys.modules[method.__module__] if own else embeddings
                if isinstance(getattr(module, name, None), FunctionType):
                    functions[_key(module, name)] = module, name
    return functions, inner


def _rotates(kind: type) -> bool:
    """Return whether a class rotates q and k, by functions that rope_xp can replace.

    Raises
    ------
    RopeError
        If it rotates by another function, or one that does something else than it is known for.
    """
    functions, inner = _find_functions(kind)
    for key, (module, name) in functions.items():
        if key not in ROTATIONS:
            raise RopeError(f"cannot patch {kind.__name__}: {key} is not known")
        rotations.check(kind.__name__, name, getattr(module, name), ROTATIONS[key])
    for name, function in inner.items():
        if kind.__name__ not in INNER_ROTATIONS:
            msg = (
                f"cannot patch {kind.__name__}: it rotates by {name}, which its {_entry(kind)} "
                "defines; nothing but an edit of its source could replace that"
            )
            raise RopeError(msg)
        rotation = INNER_ROTATIONS[kind.__name__].rotation
        rotations.check(kind.__name__, name, function, [rotation])
    return bool(functions or inner)


def load_processor(kind: type) -> type:
    """Return the subclass of a processor that rotates by rope_xp, and prepare its functions."""
    functions, _ = _find_functions(kind)
    targets = list(functions.values())
    if kind.__name__ in INNER_ROTATIONS:
        module = sys.modules[kind.__module__]
        targets += [(module, name) for name in INNER_ROTATIONS[kind.__name__].functions]
    for module, name in targets:
        _replace_function(module, name)
    return _processor_class(kind)


@kept(256)
def _processor_class(kind: Any) -> type:
    entry = _entry(kind)
    method = getattr(kind, entry)
    inner = INNER_ROTATIONS.get(kind.__name__)
    run = _run_replacing(kind, method) if inner is None else _run_without_tables(method, inner)

    def create(cls: Any, *_: Any, **__: Any) -> Any:
        processor = object.__new__(cls)
        _PATCHED.add(processor)
        return processor

    own = {entry: functools.wraps(method)(run), "__new__": create}
    return _classes.subclass(kind, own, load_processor, (kind,))


def _run_replacing(kind: type, method: Function) -> Function:
    """Return a method that runs another one with the functions it calls replaced."""
    replacements = {
        key: functools.partial(rotations.rotate_like, ROTATIONS[key])
        for key in _find_functions(kind)[0]
    }

    def run(*arguments: Any, **named: Any) -> Any:
        return _run(replacements, method, *arguments, **named)

    return run


def _run_without_tables(method: Function, inner: InnerRotation) -> Function:
    """Return a method that runs another one without tables, and rotates what it hands on."""
    place = list(inspect.signature(method).parameters).index(inner.argument) - 2
    module = sys.modules[method.__module__]
    keys = [_key(module, name) for name in inner.functions]

    def run(self: Any, attn: Any, *arguments: Any, **named: Any) -> Any:
        # Wan with the keys of an image: those are not rotated, and handed on too.
        if getattr(attn, "add_k_proj", None) is not None:
            return method(self, attn, *arguments, **named)
        tables = arguments[place] if len(arguments) > place else named.pop(inner.argument, None)
        if tables is None:
            return method(self, attn, *arguments, **named)
        if len(arguments) > place:
            arguments = (*arguments[:place], None, *arguments[place + 1 :])
        rotate = functools.partial(rotations.rotate_first, inner.rotation, tables)
        return _run(dict.fromkeys(keys, rotate), method, self, attn, *arguments, **named)

    return run


def _run(replacements: dict[str, Function], method: Function, *args: Any, **named: Any) -> Any:
    before = _ACTIVE.functions
    _ACTIVE.functions = replacements
    try:
        return method(*args, **named)
    finally:
        _ACTIVE.functions = before
