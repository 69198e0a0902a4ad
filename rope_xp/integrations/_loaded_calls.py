"""Record how a loaded model rotates: the calls of its functions, and of the modules they read."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from rope_xp._core.errors import RopeConfigError, RopeError, rewording
from rope_xp.integrations import _methods, _rotary

TOKENS = 23  # which is no number of heads


@dataclass(frozen=True)
class Made:
    """A call of a module, and its results."""

    module: torch.nn.Module
    arguments: dict[int | str, Any]  # by position or name
    results: tuple[Any, ...]


@dataclass(frozen=True)
class Rotation:
    """A call of a function that rotates, by a method of a module."""

    module: torch.nn.Module
    function: Callable[..., Any]
    arguments: dict[str, Any]
    tables: dict[str, tuple[Made, int]]  # arguments that are a result of a call, and which

    @property
    def names(self) -> list[str]:
        """The names of q and k, or of the one array that it takes."""
        return [name for name in [*self.arguments][:2] if name not in self.tables]

    @property
    def arrays(self) -> list[torch.Tensor]:
        return [self.arguments[name] for name in self.names]

    @property
    def axes(self) -> str:
        shape = tuple(self.arrays[0].shape)
        if len(shape) != 4 or TOKENS not in shape[1:3]:
            raise RopeError(f"it rotates an array of shape {shape}, and not of 4 axes")
        return "bshd" if shape[1] == TOKENS else "bhsd"


def is_positions(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not (value.is_floating_point() or value.is_complex())
        and value.shape[-1:] == (TOKENS,)
    )


def is_length(value: Any) -> bool:
    return isinstance(value, int) and value == TOKENS


def record_calls(model: torch.nn.Module) -> list[Made | Rotation]:
    """Call a model with a few tokens, and return the calls of its modules and its rotations."""
    functions = _find_functions(model)
    calls: list[Made | Rotation] = []

    def keep(module: Any, arguments: Any, named: Any, result: Any) -> None:
        results = result if isinstance(result, tuple) else (result,)
        calls.append(Made(module, {**dict(enumerate(arguments)), **named}, results))

    def watch(frame: Any, event: str, _: Any) -> None:
        if event != "call" or frame.f_code not in functions:
            return
        code, caller = frame.f_code, frame.f_back
        while caller and not isinstance(caller.f_locals.get("self"), torch.nn.Module):
            caller = caller.f_back
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = {name: frame.f_locals[name] for name in names}
        makers = (
            call
            for call in calls
            if isinstance(call, Made)
            and any(is_positions(x) or is_length(x) for x in call.arguments.values())
        )
        tables = {
            name: (made, i)
            for made in makers
            for i, result in enumerate(made.results)
            for name, value in arguments.items()
            if value is result and isinstance(value, torch.Tensor)
        }
        if caller:
            module = caller.f_locals["self"]
            calls.append(Rotation(module, functions[code], arguments, tables))

    failures = (*_rotary.FAILURES, NotImplementedError)
    with contextlib.ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            stack.callback(module.register_forward_hook(keep, with_kwargs=True).remove)
        stack.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(watch)
        ids = torch.arange(TOKENS, device=next(model.parameters()).device)[None]
        with rewording(failures, "the model fails for a few tokens: ", into=RopeConfigError):
            takes = inspect.signature(model.forward).parameters
            model(ids, **({"use_cache": False} if "use_cache" in takes else {}))
    if not any(isinstance(call, Rotation) for call in calls):
        raise RopeConfigError("no layer of the model rotates in a call of a few tokens")
    return calls


def _find_functions(model: torch.nn.Module) -> dict[CodeType, Callable[..., Any]]:
    """Return the functions that rotate which the methods of a model's modules call, by code."""
    kinds = {base for module in model.modules() for base in type(module).__mro__}
    members = [member for kind in kinds for member in vars(kind).values()]
    functions = {}
    for method in members:
        rotations = _methods.rotations_called(method) if isinstance(method, FunctionType) else {}
        for function in rotations.values():
            inner = getattr(function, "__wrapped__", function)
            if isinstance(inner, FunctionType):
                functions[inner.__code__] = function
    if not functions:
        raise RopeConfigError("no module of the model calls a function that rotates, by its name")
    return functions
