"""Subclasses of a model's classes, whose methods call rope_xp, and the exchange of the two."""

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any, cast

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp.integrations import _methods
from rope_xp.integrations._methods import Function

_ORIGINAL = "_patched_by_rope_xp"


def load_rotating(kind: type, build: Callable[..., Function], *arguments: Any) -> type:
    """Return a class whose methods call replacements of the functions that rotate.

    ``build(name, function, module, *arguments)`` returns a replacement, see ``replace_rotations``.
    The module of a class may hold other functions by now, which are then replaced.
    """
    return _rotating_class(kind, _methods.functions_called(kind), build, arguments)


@cached(256)
def _rotating_class(kind: type, _: Any, build: Function, arguments: tuple[Any, ...]) -> type:
    copies = {
        name: _methods.replace_rotations(method, lambda *rotation: build(*rotation, *arguments))
        for name, method in _methods.rotating_methods(kind).items()
    }
    return build_subclass(kind, copies, load_rotating, (kind, build, *arguments))


def rotary_class(kind: type, method: str, field: str, compute: Function, loader: Function) -> type:
    """Return a class whose instances run ``compute`` as a method where they have a field."""
    original = getattr(kind, method)

    @functools.wraps(original)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        # A new instance of this class does what its base does.
        return (compute if hasattr(self, field) else original)(self, *arguments, **named)

    return build_subclass(kind, {method: run}, loader, (kind,))


def build_subclass(
    kind: type, methods: Mapping[str, Any], loader: Function, arguments: tuple[Any, ...]
) -> type:
    """Return a class with other methods and the same name; ``loader`` makes it for pickles."""

    def reduced(self: Any, protocol: int) -> Any:
        _, _, *state = cast("Any", kind).__reduce_ex__(self, max(protocol, 2))
        return _empty_instance, (loader, arguments), *state

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, _ORIGINAL: kind}
    return type(kind.__name__, (kind,), {**methods, **names, "__reduce_ex__": reduced})


def _empty_instance(loader: Function, arguments: tuple[Any, ...]) -> Any:
    kind = loader(*arguments)
    return kind.__new__(kind)


def is_patched(part: Any) -> bool:
    """Return whether the class of a part is one that patching made, or was made of one."""
    return hasattr(type(part), _ORIGINAL)


def check_unpatched(parts: Iterable[Any]) -> None:
    if any(map(is_patched, parts)):
        raise RopeError("the model is patched already; unpatch it first")


def patch_classes(parts: Mapping[str, Any], classes: Mapping[Any, type]) -> None:
    """Give the parts of a model new classes, by class or name, after a check of all of them."""
    new = {n: c for n, part in parts.items() if (c := classes.get(n, classes.get(type(part))))}
    for name in new:
        _check_forward(name, parts[name], "patch")
    for name, kind in new.items():
        _exchange(parts[name], kind)


def restore_classes(parts: Iterable[tuple[str, Any]], attribute: str) -> None:
    """Give patched parts their classes back after a check of all, and delete an attribute."""
    patched = {name: part for name, part in parts if is_patched(part)}
    for name, part in patched.items():
        kind = type(part)
        if _ORIGINAL not in vars(kind):
            raise RopeError(
                f"cannot unpatch {name} ({kind.__name__}): its class was changed since then, as "
                "fully_shard does; unpatch before doing that"
            )
        _check_forward(name, part, "unpatch")
    for part in patched.values():
        _exchange(part, type(part).__bases__[0])
        vars(part).pop(attribute, None)


def _check_forward(name: str, module: Any, verb: str) -> None:
    """Check that an instance's own ``forward``, if it has one, calls that of its class."""
    if not isinstance(module, torch.nn.Module):
        return
    attributes = vars(module)
    # accelerate's hooks call this attribute, and leave it as forward when they are taken off.
    inside = attributes.get("_old_forward", attributes.get("forward"))
    if inside is not None and not _is_method_of_class(module, "forward", inside):
        raise RopeError(
            f"cannot {verb} {name} ({type(module).__name__}): something has replaced its forward; "
            f"remove the replacement, {verb}, and add it again"
        )


def _is_method_of_class(module: Any, name: str, value: Any) -> bool:
    return (
        isinstance(value, MethodType)
        and value.__self__ is module
        and value.__func__ is getattr(type(module), name, None)
    )


def _exchange(module: Any, kind: type) -> None:
    """Give a module, or an object that one holds, another class, and its held methods too."""
    methods = {
        attribute: method
        for attribute, value in vars(module).items()
        for method in (attribute, "forward")
        if _is_method_of_class(module, method, value)
    }
    module.__class__ = kind
    for attribute, method in methods.items():
        vars(module)[attribute] = MethodType(getattr(kind, method), module)
