"""Classes of modules whose methods rotate by rope_xp: made of a model's own, and exchanged."""

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp.integrations import _functions, _rotary
from rope_xp.integrations._formats import Format

Function = Callable[..., Any]

_ORIGINAL = "_patched_by_rope_xp"
_ALONE = "patch(model, rotation=False) replaces the rotary modules alone"
_TABLES = frozenset({"cos", "sin", "freqs_cis"})
"""How code calls the tables of a rotary module that it reads."""
_TUPLES = _TABLES | {"position_embeddings", "rotary_pos_emb"}
"""How functions call what they take tables by."""
_HARMLESS = frozenset(
    f"transformers.models.{name}"
    for name in (
        "lasr.modeling_lasr.LasrEncoder",  # hands them on to its attention
        "gemma4.modeling_gemma4.Gemma4TextModel",  # hands on those of the last tokens
        "gemma4_unified.modeling_gemma4_unified.Gemma4UnifiedTextModel",
        # These get tables of other modules, which are not patched.
        "esmfold2.modeling_esmfold2.EsmFold2DiffusionModule",
        "wav2vec2_bert.modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention",
    )
)
"""Classes that have such names, and rotate nothing by the tables of a patched module."""


def original(kind: type) -> type | None:
    """Return the class that a patched one was made of; None for others."""
    base: type | None = getattr(kind, _ORIGINAL, None)
    return base


# --- methods that rotate -------------------------------------------------------------------------


def _rotating_methods(kind: type) -> dict[str, FunctionType]:
    """Return the methods of a class that call a function that rotates, inherited ones included.

    Raises
    ------
    RopeError
        If one of them is overridden: what super() would call stays as it is.
    """
    methods: dict[str, FunctionType] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            rotates = isinstance(member, FunctionType) and _functions.rotations_called(member)
            if methods.pop(name, None) is not None and not rotates:
                msg = (
                    f"cannot patch {kind.__name__}: {base.__name__} overrides {name}, in which its "
                    f"base rotates q and k; {_ALONE}"
                )
                raise RopeError(msg)
            if rotates:
                methods[name] = member
    return methods


def functions_called(kind: type) -> tuple[tuple[str, Function], ...]:
    """Return the functions that rotate which the methods of a class call, with their names."""
    return tuple(
        (name, function)
        for method in _rotating_methods(kind).values()
        for name, function in _functions.rotations_called(method).items()
    )


def rotation_name(kind: type) -> str | None:
    """Return the name of a function or method that rotates which a class calls, None if none."""
    members = (member for base in kind.__mro__ for member in vars(base).values())
    methods = (member for member in members if isinstance(member, FunctionType))
    return next((name for each in methods for name in _functions.rotation_names(each)), None)


def check_readers(kind: type) -> None:
    """Check that the methods of a class which read tables hand them to functions that rotate.

    Raises
    ------
    RopeError
        If one reads tables, by the names that all models have for them, and calls none: it would
        get tables of float32 in a model of 16 bits.
    """
    if f"{kind.__module__}.{kind.__qualname__}" in _HARMLESS:
        return
    for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        for name, member in vars(base).items():
            method = getattr(member, "__func__", member)  # of a static method
            if not isinstance(method, FunctionType) or _functions.rotations_called(method):
                continue
            for part in _functions.wrapped_functions(method):
                reader = _reader(part)
                if reader is not None:
                    msg = (
                        f"cannot patch {base.__name__}.{name}: {reader}, and no function that is "
                        f"replaced rotates there; {_ALONE}"
                    )
                    raise RopeError(msg)


def _reader(function: FunctionType) -> str | None:
    """Say what in a function reads tables; None where nothing does."""
    for code in _functions.inner_codes(function.__code__):
        for variable in (*code.co_varnames, *code.co_cellvars):
            if variable in _TABLES:
                return f"it reads {variable}"
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType):
                inner = called.__code__
                if not _TUPLES.isdisjoint(inner.co_varnames[: inner.co_argcount]):
                    return f"it calls {name}"
    return None


@cached(256)
def _rotating_class(
    kind: type, _: tuple[tuple[str, Function], ...], forms: tuple[Format, ...]
) -> type:
    def new_name(scope: dict[str, Any], name: str) -> str:
        return _functions.install(scope, name, forms)

    methods = _rotating_methods(kind).items()
    own = {name: _functions.rename_rotations(method, new_name) for name, method in methods}
    return subclass(kind, own, load_rotating, (kind, forms))


def load_rotating(kind: type, forms: tuple[Format, ...]) -> type:
    """Return a class that rotates by rope_xp where its base calls functions that rotate.

    The module of a class may hold other functions by now, which are then replaced.
    """
    return _rotating_class(kind, functions_called(kind), forms)


@cached(256)
def load_rotary(kind: Any) -> type:
    """Return a class of rotary modules whose tables are those of their plans."""

    @functools.wraps(kind.forward)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        # A new instance of this class has no plans, and does what its base does.
        run = _rotary.forward if hasattr(self, _rotary.PLANS) else kind.forward
        return run(self, *arguments, **named)

    return subclass(kind, {"forward": forward}, load_rotary, (kind,))


def subclass(kind: type, own: dict[str, Any], loader: Function, arguments: Any) -> type:
    """Return a class with other methods and the same name; ``loader`` makes it for pickles."""

    def reduced(self: Any, protocol: int) -> Any:
        _, _, *state = cast("Any", kind).__reduce_ex__(self, max(protocol, 2))
        return _empty_instance, (loader, arguments), *state

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, _ORIGINAL: kind}
    return type(kind.__name__, (kind,), {**own, **names, "__reduce_ex__": reduced})


def _empty_instance(loader: Function, arguments: Any) -> Any:
    kind = loader(*arguments)
    return kind.__new__(kind)


# --- exchange ------------------------------------------------------------------------------------


def check_forward(name: str, module: torch.nn.Module, verb: str) -> None:
    """Check that what an instance has in place of ``forward``, if anything, ends in its class's.

    Raises
    ------
    RopeError
        If it does not, or nobody can tell.
    """
    attributes = vars(module)
    # accelerate's hooks call this attribute, and leave it as forward when they are taken off.
    inside = attributes.get("_old_forward", attributes.get("forward"))
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
    methods = {
        attribute: method
        for attribute, value in vars(module).items()
        for method in (attribute, "forward")
        if _is_method_of_class(module, method, value)
    }
    module.__class__ = kind
    for attribute, method in methods.items():
        vars(module)[attribute] = MethodType(getattr(kind, method), module)
