"""Check or replace the rotary embedding of a transformers model, and move the keys it caches."""

import sys
from typing import Any, Literal, TypeVar

import torch

from rope_xp._core import versions
from rope_xp._core.errors import RopeError, rewording
from rope_xp.integrations import (
    _check,
    _check_config,
    _classes,
    _methods,
    _norms,
    _plans,
    _replacements,
    _rotary,
)
from rope_xp.integrations._caches import drop, join, move_keys, rescale
from rope_xp.integrations._check_config import Finding
from rope_xp.integrations._formats import Format

__all__ = ["Finding", "check", "drop", "join", "move_keys", "patch", "rescale", "unpatch"]

ModelT = TypeVar("ModelT", bound=torch.nn.Module)


def check(model: torch.nn.Module) -> tuple[Finding, ...]:
    """Return what is wrong with a model's rotary embedding, or may go wrong later.

    Frequency buffers are compared with the configuration and with a new module of the same class.
    Cos and sin at large positions, on the module's device and under autocast, are compared with
    exact ones. Layouts of rotating functions are compared with the weights'. Nothing changes.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or any module that contains rotary modules. Those have buffers with
        names that end in inv_freq, or tables such as cos_cached.

    Returns
    -------
    tuple of Finding
        Errors first; empty if nothing is wrong.

    Raises
    ------
    TypeError
        If model is not a torch module.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import check
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    >>> model = LlamaForCausalLM(config)
    >>> check(model)
    ()
    >>> [(finding.kind, finding.module) for finding in check(model.bfloat16())]
    [('cast', 'model.rotary_emb.inv_freq')]
    """
    _check_module(model)
    findings = [*_check.check_rotary_modules(model), *_check_config.check_configs(model)]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "error"))


def patch(
    model: ModelT,
    *,
    length: int | None = None,
    rotation: bool = True,
    norm: bool = False,
    trust: Literal["both", "config"] = "both",
) -> ModelT:
    """Make a loaded model compute its angles and rotate q and k with rope_xp.

    The rotary modules return exact tables at any position, in float32 whatever the model's dtype,
    and the attention rotates on rope_xp's fast path. Gradients, key-value caches, padding,
    ``torch.compile``, accelerate's hooks, pickles and copies work as before. Before anything
    changes, the model's tables and functions are compared with rope_xp's on a few values.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or a module that contains one.
    length : int, optional
        Tokens of the context, to which scaling that depends on it is fixed. Without it, LongRoPE
        chooses by the positions of each call, as transformers does.
    rotation : bool, default True
        Whether rope_xp rotates q and k. If False, the model's own functions do, with exact tables
        in the dtype and shape that they expect.
    norm : bool, default False
        Whether the rotation also computes the RMSNorm of q and k before it, as in Qwen 3 and Gemma
        3, in one pass. Hooks on ``q_norm`` and ``k_norm`` then see no tensors.
    trust : {"both", "config"}, default "both"
        "both": a rotary module's frequency buffer must agree with the configuration. "config": it
        is rebuilt from the configuration, such as after loading on the meta device.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If a part of the model cannot be patched, such as a class that reads cos and sin but calls
        no rotating function, or a norm that cannot be fused. The message names it, and the model
        does not change. Also if trust is neither of the two, or norm needs ``rotation=True``.
    TypeError
        If model is not a torch module, but for example a name on the Hub.

    Notes
    -----
    Rotary modules, and modules that call a rotating function, get a subclass of their class with
    the same name, whose methods call rope_xp. If you replace the model's function later, as
    Liger-Kernel does, yours is called, with tables in the dtype of q. State dictionaries stay the
    same, except for buffers that ``trust="config"`` rebuilds.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import patch, unpatch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    >>> model = LlamaForCausalLM(config).eval()
    >>> tokens = torch.arange(8)[None]
    >>> with torch.no_grad():
    ...     before, after = model(tokens).logits, patch(model)(tokens).logits
    >>> torch.allclose(before, after, atol=1e-5)
    True
    >>> model = unpatch(model)
    """
    _check_module(model)
    if "transformers" in sys.modules:
        versions.check_version("transformers")
    if trust not in ("both", "config"):
        raise RopeError(f"trust must be 'both' or 'config'; got {trust!r}")
    if norm and not rotation:
        raise RopeError("norm=True needs rotation=True: the rotation by rope_xp computes the norm")
    _classes.check_unpatched(model.modules())
    rotary = dict(_rotary.rotary_modules(model))
    if not rotary:
        raise RopeError(
            f"cannot patch {type(model).__name__}: none of its modules computes angles, as those "
            "with inv_freq among their buffers do. Its positions may not be rotary, as in BERT, or "
            "its layers have tables of their own, as in GPT-J. rope_xp.testing.identify shows the "
            "RoPE of a function"
        )
    options = _plans.PatchOptions(length, rotation, trust == "config")
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        plans = {n: _plans.build_plans(n, m, options, len(rotary) > 1) for n, m in rotary.items()}
        classes = {kind: _plans.load_rotary(kind) for kind in map(type, rotary.values())}
        if rotation:
            forms = {plan.form: None for by_label in plans.values() for plan in by_label.values()}
            classes |= _load_rotating_classes(model, set(classes), tuple(forms))
        norms: Any = _norms.find_norms(model, lambda _, m: type(m) in classes) if norm else {}
    _classes.patch_classes(dict(model.named_modules()), classes | norms)
    for name, module in rotary.items():
        _plans.set_plans(module, plans[name], options.trusting)
    return model


def _load_rotating_classes(
    model: torch.nn.Module, rotary_kinds: set[type], forms: tuple[Format, ...]
) -> dict[type, type]:
    """Return the classes of a model that rotate, each with the class that takes its place."""
    kinds = [kind for kind in dict.fromkeys(map(type, model.modules())) if kind not in rotary_kinds]
    alone = "; patch(model, rotation=False) replaces only the rotary modules"
    with rewording(RopeError, "", alone):
        rotating = [kind for kind in kinds if _methods.functions_called(kind)]
        if not rotating:
            raise RopeError(f"cannot patch {type(model).__name__}: found no function that rotates")
        for kind in kinds:
            _methods.check_readers(kind)
    build = _replacements.build_replacement
    return {kind: _classes.load_rotating(kind, build, forms) for kind in rotating}


def unpatch(model: ModelT) -> ModelT:
    """Undo :func:`~rope_xp.integrations.transformers.patch`; return the model, patched or not.

    Raises
    ------
    RopeError
        If a patched module has since changed in a way that unpatching would lose. The message names
        it, and the model stays patched.
    """
    _check_module(model)
    _classes.restore_classes(model.named_modules(), _plans.PLANS)
    return model


def _check_module(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise TypeError(f"model must be a torch.nn.Module, as from_pretrained returns; got {kind}")
