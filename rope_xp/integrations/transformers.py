"""Hand the rotation of a model of transformers to rope_xp."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

import torch

from rope_xp._errors import RopeError
from rope_xp.integrations import _functions, _rotary

ModelT = TypeVar("ModelT", bound=torch.nn.Module)

_PLANS = "rope_xp_plans"
_MARK = "_patched_by_rope_xp"


def patch(model: ModelT, *, length: int | None = None) -> ModelT:
    """Let rope_xp compute the angles and rotate q and k of a model, from now on.

    The model's rotary modules give tables that are exact at any position, in float32 whatever the
    dtype of the model, and its attention rotates on rope_xp's fast path. Gradients, key-value
    caches, padding and ``torch.compile`` work as before. Other models of the same type are not
    touched.

    Before anything is changed, each rotary module and each function that rotates is asked for a few
    values, and compared with what rope_xp makes of the configuration.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or one that holds some.
    length : int, optional
        Tokens of the context, for rules that depend on it: their frequencies are those of this
        length, always. Without it, LongRoPE chooses by the positions of each call, as transformers
        does.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If a part of the model cannot be patched; the message names it, and the model stays as it
        was.

    Notes
    -----
    The classes of the patched modules become subclasses made here: pickle whole modules only after
    :func:`unpatch`. State dictionaries and ``save_pretrained`` are not affected.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import patch, unpatch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(
    ...     vocab_size=32, hidden_size=32, intermediate_size=32,
    ...     num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    ... )
    >>> model = LlamaForCausalLM(config).eval()
    >>> tokens = torch.arange(8)[None]
    >>> with torch.no_grad():
    ...     before, after = model(tokens).logits, patch(model)(tokens).logits
    >>> torch.allclose(before, after, atol=1e-5)
    True
    >>> model = unpatch(model)
    """
    if any(_is_patched(module) for module in model.modules()):
        raise RopeError("the model is patched already; unpatch it first")
    found = dict(_rotary.modules(model))
    if not found:
        raise RopeError(f"cannot patch {type(model).__name__}: it has no module with inv_freq")
    plans = {name: _rotary.plans(name, module, length) for name, module in found.items()}
    forms = dict.fromkeys(plan.form for each in plans.values() for plan in each.values())
    functions = {function: _functions.recognise(function, forms) for function in _rotating(model)}
    if not functions:
        raise RopeError(f"cannot patch {type(model).__name__}: no function that rotates was found")
    replacements = {
        function: _functions.replacement(function, rotation)
        for function, rotation in functions.items()
    }
    for module in model.modules():
        _become(module, _rebound_methods(type(module), replacements))
    for name, module in found.items():
        setattr(module, _PLANS, plans[name])
        _become(module, {"forward": _rotary.forward})
    return model


def unpatch(model: ModelT) -> ModelT:
    """Undo :func:`patch`.

    Parameters
    ----------
    model : torch.nn.Module
        A model, patched or not.

    Returns
    -------
    torch.nn.Module
        The same model.
    """
    for module in model.modules():
        if _is_patched(module):
            module.__class__ = type(module).__bases__[0]
            if hasattr(module, _PLANS):
                delattr(module, _PLANS)
    return model


def _is_patched(module: torch.nn.Module) -> bool:
    return _MARK in vars(type(module))


def _become(module: torch.nn.Module, methods: dict[str, Any]) -> None:
    """Give a module other methods, by a subclass of its class with the same name."""
    if methods:
        kind = type(module)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, _MARK: True}
        module.__class__ = type(kind.__name__, (kind,), methods | names)


def _own_methods(kind: type) -> dict[str, FunctionType]:
    """Return the methods of a class that call a function that rotates, inherited ones too."""
    found: dict[str, FunctionType] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            found.pop(name, None)
            if isinstance(member, FunctionType) and _functions.used_by(member):
                found[name] = member
    return found


def _rotating(model: torch.nn.Module) -> dict[Any, None]:
    """Return the functions that rotate, of all parts of a model."""
    return {
        function: None
        for kind in {type(module): None for module in model.modules()}
        for method in _own_methods(kind).values()
        for function in _functions.used_by(method).values()
    }


def _rebound_methods(kind: type, replacements: dict[Any, Any]) -> dict[str, Any]:
    return {
        name: _functions.rebound(method, replacements)
        for name, method in _own_methods(kind).items()
    }
