"""Classes of modules whose methods rotate by rope_xp: made of a model's own, and exchanged."""

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

import torch

from rope_xp._contract.caches import kept
from rope_xp._contract.errors import RopeError
from rope_xp.integrations import _functions, _rotary
from rope_xp.integrations._formats import Format

Function = Callable[..., Any]
Called = tuple[tuple[str, Function], ...]
"""The functions that rotate which a class calls, with the names by which it does."""

ALONE = "patch(model, rotation=False) replaces the rotary modules alone"
_ORIGINAL = "_patched_by_rope_xp"


def original(kind: type) -> type | None:
    """Return the class that a patched one was made of; None for others."""
    made_of: type | None = getattr(kind, _ORIGINAL, None)
    return made_of


def _rotates(method: FunctionType) -> bool:
    return bool(_functions.used_by(method))


def methods(
    kind: type, rotate: Callable[[FunctionType], bool] = _rotates
) -> dict[str, FunctionType]:
    """Return the methods of a class that call a function that rotates, inherited ones too.

    Raises
    ------
    RopeError
        If one of them is overridden: what super() would call stays as it is.
    """
    found: dict[str, FunctionType] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            rotates = isinstance(member, FunctionType) and rotate(member)
            if found.pop(name, None) is not None and not rotates:
                msg = (
                    f"cannot patch {kind.__name__}: {base.__name__} overrides {name}, in which its "
                    f"base rotates q and k; {ALONE}"
                )
                raise RopeError(msg)
            if rotates:
                found[name] = member
    return found


def mentioned(kind: type) -> str | None:
    """Return the name of a function or method that rotates which a class calls, None if none."""
    members = (member for base in kind.__mro__ for member in vars(base).values())
    methods = (member for member in members if isinstance(member, FunctionType))
    return next((name for each in methods for name in _functions.named(each)), None)


def called(kind: type) -> Called:
    """Return the functions that rotate which the methods of a class call."""
    return tuple(
        (name, function)
        for method in methods(kind).values()
        for name, function in _functions.used_by(method).items()
    )


@kept(256)
def rotating(kind: type, functions: Called, forms: tuple[Format, ...]) -> type:
    """Return a class that rotates by rope_xp where its base calls these functions."""
    replacements = {}
    for name, function in functions:
        where = f"{kind.__module__}.{name}"
        theirs = _functions.own(function)
        rotation = _functions.recognise(where, theirs, forms)
        replacements[function] = _functions.replacement(name, theirs, rotation)
    own = {name: _functions.rebound(m, replacements) for name, m in methods(kind).items()}
    return subclass(kind, own, rotating_again, (kind, forms))


def rotating_again(kind: type, forms: tuple[Format, ...]) -> type:
    """Return the class of a module that was pickled, in a process that may not have made it yet."""
    return rotating(kind, called(kind), forms)


@kept(256)
def giving_tables(kind: Any) -> type:
    """Return a class of rotary modules whose tables are those of their plans."""

    @functools.wraps(kind.forward)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        # Whoever makes a new module of this class gets one that does what the model's own does.
        given = _rotary.forward if hasattr(self, _rotary.PLANS) else kind.forward
        return given(self, *arguments, **named)

    return subclass(kind, {"forward": forward}, giving_tables, (kind,))


def subclass(kind: type, own: dict[str, Any], maker: Function, arguments: Any) -> type:
    """Return a class with other methods and the same name, which pickles are loaded into again."""

    def reduced(self: Any, protocol: int) -> Any:
        _, _, *state = cast("Any", kind).__reduce_ex__(self, max(protocol, 2))
        return _empty, (maker, arguments), *state

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, _ORIGINAL: kind}
    return type(kind.__name__, (kind,), {**own, **names, "__reduce_ex__": reduced})


def _empty(maker: Function, arguments: Any) -> Any:
    kind = maker(*arguments)
    return kind.__new__(kind)


# --- exchange ------------------------------------------------------------------------------------


def check_forward(name: str, module: torch.nn.Module, verb: str) -> None:
    """Check that what an instance has in place of ``forward``, if anything, ends in its class's.

    Raises
    ------
    RopeError
        If it does not, or nobody can tell.
    """
    own = vars(module)
    # accelerate's hooks call this attribute, and leave it as forward when they are taken off.
    inside = own.get("_old_forward", own.get("forward"))
    if inside is not None and not _is_method_of_class(module, "forward", inside):
        msg = (
            f"cannot {verb} {name} ({type(module).__name__}): something has replaced its forward; "
            f"take that off, {verb}, and put it on again"
        )
        raise RopeError(msg)


def check_own(name: str, module: Any) -> None:
    """Check that the class of a patched module is the one that patching gave it.

    Raises
    ------
    RopeError
        If another was made of it.
    """
    kind = type(module)
    if _ORIGINAL not in vars(kind):
        msg = (
            f"cannot unpatch {name} ({kind.__name__}): another class was made of it since, as "
            "fully_shard does; unpatch before that"
        )
        raise RopeError(msg)


def _is_method_of_class(module: Any, name: str, value: Any) -> bool:
    return (
        isinstance(value, MethodType)
        and value.__self__ is module
        and value.__func__ is getattr(type(module), name, None)
    )


def exchange(module: Any, kind: type) -> None:
    """Give a module, or what one holds, another class and the methods of it that it holds."""
    held = {
        attribute: method
        for attribute, value in vars(module).items()
        for method in (attribute, "forward")
        if _is_method_of_class(module, method, value)
    }
    module.__class__ = kind
    for attribute, method in held.items():
        vars(module)[attribute] = MethodType(getattr(kind, method), module)
