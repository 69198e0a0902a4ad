"""Check the rotation of a model of transformers, or hand it to rope_xp."""

from typing import Literal, TypeVar

import torch

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _check, _check_config, _classes, _rotary
from rope_xp.integrations._findings import Finding

__all__ = ["Finding", "check", "patch", "unpatch"]

ModelT = TypeVar("ModelT", bound=torch.nn.Module)


def check(model: torch.nn.Module) -> tuple[Finding, ...]:
    """Return what is wrong with the rotary embedding of a model, or will be.

    Nothing is changed. Buffers of frequencies are compared with the configuration and with what
    their own class makes of it; modules are asked for cos and sin at large positions, on their
    device, under the settings of TF32 that hold, and under autocast; functions that rotate are
    asked which components they pair.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or any module that holds rotary modules: with buffers whose names
        end with inv_freq, tables such as cos_cached, or an attribute ``rope``, a
        :class:`rope_xp.RoPE`.

    Returns
    -------
    tuple of Finding
        Errors first; empty where nothing is wrong.

    Raises
    ------
    TypeError
        If model is no module of torch.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import check
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(
    ...     vocab_size=32, hidden_size=32, intermediate_size=32,
    ...     num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    ... )
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
    trust: Literal["both", "config"] = "both",
) -> ModelT:
    """Let rope_xp compute the angles and rotate q and k of a model, from now on.

    The model's rotary modules give tables that are exact at any position, in float32 whatever the
    dtype of the model, and its attention rotates on rope_xp's fast path. Gradients, key-value
    caches, padding, ``torch.compile``, hooks of accelerate, pickles and copies work as before.
    Other models of the same type are not touched.

    Before anything is changed, each rotary module and each function that rotates is asked for a few
    values, and compared with what rope_xp makes of the configuration. A class that reads cos and
    sin and calls no such function is refused by name.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or one that holds some.
    length : int, optional
        Tokens of the context, for rules that depend on it: their frequencies are those of this
        length, always. Without it, LongRoPE chooses by the positions of each call, as transformers
        does.
    rotation : bool, default True
        Whether q and k are rotated by rope_xp. If not, the rotary modules alone are replaced: the
        model's own functions get tables of the dtype and the shape that they know, of exact angles.
    trust : {"both", "config"}, default "both"
        What a rotary module must agree with. "both": its buffer of frequencies must be that of the
        configuration, or nothing is patched. "config": the buffer may hold anything, such as what
        a load on the meta device left there, and is made anew from the configuration.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If a part of the model cannot be patched; the message names it, and the model stays as it
        was. If trust is none of the two.
    TypeError
        If model is no module of torch, such as a name on the Hub.

    Notes
    -----
    The rotary modules, and those whose methods call a function that rotates, get a class of the
    same name, made here of their own. Its methods are copies that call rope_xp's functions, which
    stand in the modules of transformers under names of their own. A function that is put in place
    of the model's own there later on, as Liger-Kernel does, is called instead, with tables in the
    dtype of q. Parameters, buffers, configurations, state dictionaries and files of
    ``save_pretrained`` are not touched, but for what ``trust="config"`` makes anew.

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
    _check_module(model)
    if trust not in ("both", "config"):
        raise RopeError(f"trust must be 'both' or 'config'; got {trust!r}")
    if any(_classes.original(type(module)) for module in model.modules()):
        raise RopeError("the model is patched already; unpatch it first")
    rotary = dict(_rotary.rotary_modules(model))
    if not rotary:
        raise RopeError(f"cannot patch {type(model).__name__}: {_no_angles(model)}")
    kinds = dict.fromkeys(map(type, model.modules()))
    rotating = [kind for kind in kinds if rotation and _classes.functions_called(kind)]
    for name, module in model.named_modules():
        if name in rotary or type(module) in rotating:
            _classes.check_forward(name, module, "patch")
    options = _rotary.Options(length, rotation, trust == "config")
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        plans = {name: _rotary.plans(name, module, options) for name, module in rotary.items()}
        forms = tuple(dict.fromkeys(p.form for each in plans.values() for p in each.values()))
        classes = {kind: _classes.load_rotating(kind, forms) for kind in rotating}
    if rotation and not classes:
        raise RopeError(f"cannot patch {type(model).__name__}: no function that rotates was found")
    rotary_kinds = set(map(type, rotary.values()))
    if rotation:
        for kind in kinds:
            if kind not in rotary_kinds:
                _classes.check_readers(kind)
    classes |= {kind: _classes.load_rotary(kind) for kind in rotary_kinds}
    for module in model.modules():
        if type(module) in classes:
            _classes.exchange(module, classes[type(module)])
    for name, module in rotary.items():
        _rotary.set_plans(module, plans[name], options.trusting)
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

    Raises
    ------
    RopeError
        If something has changed a patched module since in a way that cannot be kept; the message
        names it, and the model stays patched.
    TypeError
        If model is no module of torch.
    """
    _check_module(model)
    patched = {n: m for n, m in model.named_modules() if _classes.original(type(m))}
    for name, module in patched.items():
        _classes.check_own(name, module)
        _classes.check_forward(name, module, "unpatch")
    for module in patched.values():
        _classes.exchange(module, type(module).__bases__[0])
        if hasattr(module, _rotary.PLANS):
            delattr(module, _rotary.PLANS)
    return model


def _check_module(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        msg = (
            "model must be a torch.nn.Module, such as what from_pretrained of transformers "
            f"returns; got {type(model).__name__}"
        )
        raise TypeError(msg)


def _no_angles(model: torch.nn.Module) -> str:
    """Say why there is nothing to patch: the model rotates by tables of its own, or not at all."""
    for kind in dict.fromkeys(map(type, model.modules())):
        name = _classes.rotation_name(kind)
        if name is not None:
            return (
                f"{kind.__name__} calls {name}, and reads cos and sin from a table of its own. "
                "patch replaces modules that compute them, which have inv_freq among their buffers"
            )
    return (
        "none of its modules makes angles for a rotation (those have inv_freq among their "
        "buffers). Its positions are probably not rotary, as those of BERT and GPT-2 are not, and "
        "then there is nothing to patch; if it does rotate, rope_xp.testing.identify tells which "
        "RoPE its function is"
    )
