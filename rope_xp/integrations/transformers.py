"""Hand the rotation of a model of transformers to rope_xp."""

from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import torch

from rope_xp._contract.errors import RopeError
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
    methods = {kind: _own_methods(kind) for kind in {type(module) for module in model.modules()}}
    for name, module in model.named_modules():
        if name in found or methods[type(module)]:
            _check_forward(name, module)
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        plans = {name: _rotary.plans(name, module, length) for name, module in found.items()}
        forms = dict.fromkeys(plan.form for each in plans.values() for plan in each.values())
        called = {f for own in methods.values() for m in own.values() for f in m.called}
        replacements = {
            function: _functions.replacement(function, _functions.recognise(function, forms))
            for function in called
        }
    if not replacements:
        raise RopeError(f"cannot patch {type(model).__name__}: no function that rotates was found")
    made = {
        kind: _subclass(kind, {name: m.rebound(replacements) for name, m in own.items()})
        for kind, own in methods.items()
        if own
    }
    made |= {
        kind: _subclass(kind, {"forward": _rotary.forward})
        for kind in {type(module) for module in found.values()}
    }
    for module in model.modules():
        module.__class__ = made.get(type(module), type(module))
    for name, module in found.items():
        setattr(module, _PLANS, plans[name])
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


def _check_forward(name: str, module: torch.nn.Module) -> None:
    """Check that a class with another forward is asked at all."""
    if "forward" in vars(module):
        msg = (
            f"cannot patch {name} ({type(module).__name__}): something has replaced its forward, "
            "such as a hook that moves it to a device; patch before that"
        )
        raise RopeError(msg)


def _subclass(kind: type, methods: dict[str, Any]) -> type:
    """Return a class with other methods and the same name."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, _MARK: True}
    return type(kind.__name__, (kind,), methods | names)


@dataclass(frozen=True)
class _Method:
    function: FunctionType

    @property
    def called(self) -> tuple[Any, ...]:
        return tuple(_functions.used_by(self.function).values())

    def rebound(self, replacements: dict[Any, Any]) -> FunctionType:
        return _functions.rebound(self.function, replacements)


def _own_methods(kind: type) -> dict[str, _Method]:
    """Return the methods of a class that call a function that rotates, inherited ones too.

    Raises
    ------
    RopeError
        If one of them is overridden: what super() would call stays as it is.
    """
    found: dict[str, _Method] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            if found.pop(name, None) is not None and not _rotates(member):
                msg = (
                    f"cannot patch {kind.__name__}: {base.__name__} overrides {name}, in which its "
                    "base rotates q and k"
                )
                raise RopeError(msg)
            if _rotates(member):
                found[name] = _Method(member)
    return found


def _rotates(member: Any) -> bool:
    return isinstance(member, FunctionType) and bool(_functions.used_by(member))
