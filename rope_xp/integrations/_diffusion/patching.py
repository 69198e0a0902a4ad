"""Hand the rotation of a diffusion transformer to rope_xp."""

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from rope_xp._contract.caches import cached
from rope_xp._contract.errors import RopeConfigError, RopeError
from rope_xp.integrations import _classes, _rotary
from rope_xp.integrations._diffusion import rotations, sites
from rope_xp.integrations._diffusion.config import from_config
from rope_xp.integrations._diffusion.embeddings import BY_CALLER, EMBEDDINGS
from rope_xp.integrations._diffusion.models import OWN_TABLES
from rope_xp.rope import RoPE

_ROPE = "rope_xp_rope"
"""The attribute of a patched rotary module that holds its RoPE."""


def patch(model: torch.nn.Module) -> None:
    """Do what :func:`rope_xp.integrations.diffusers.patch` promises."""
    who = type(model).__name__
    parts = dict(_parts(model))
    if any(_classes.original(type(part)) for part in parts.values()):
        raise RopeError("the model is patched already; unpatch it first")
    rope = _rope(model, who)
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        ropes = {n: _checked(n, part, rope) for n, part in parts.items() if _makes_tables(part)}
        kinds = set(map(type, parts.values()))
        made = {kind: rotating_now(kind) for kind in kinds if _methods(kind)}
    if not made:
        raise RopeError(f"cannot patch {who}: no function that rotates was found")
    if not ropes and rope is not None and who not in BY_CALLER:
        raise RopeError(f"cannot patch {who}: what makes its tables is not known")
    made |= {type(parts[name]): giving_tables(type(parts[name])) for name in ropes}
    for name, part in parts.items():
        if type(part) in made and isinstance(part, torch.nn.Module):
            _classes.check_forward(name, part, "patch")
    for part in parts.values():
        if type(part) in made:
            _classes.exchange(part, made[type(part)])
    for name, own in ropes.items():
        setattr(parts[name], _ROPE, own)


def unpatch(model: torch.nn.Module) -> None:
    """Do what :func:`rope_xp.integrations.diffusers.unpatch` promises."""
    patched = {n: part for n, part in _parts(model) if _classes.original(type(part))}
    for name, part in patched.items():
        _classes.check_own(name, part)
        if isinstance(part, torch.nn.Module):
            _classes.check_forward(name, part, "unpatch")
    for part in patched.values():
        _classes.exchange(part, type(part).__bases__[0])
        if hasattr(part, _ROPE):
            delattr(part, _ROPE)


def _parts(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model, and what of diffusers they hold that is none: processors."""
    seen = set()
    for name, module in model.named_modules():
        yield name, module
        for attribute, held in vars(module).items():
            of_diffusers = type(held).__module__.startswith("diffusers.")
            if of_diffusers and not isinstance(held, dict) and id(held) not in seen:
                seen.add(id(held))
                yield f"{name}.{attribute}", held


def _rope(model: torch.nn.Module, who: str) -> RoPE | None:
    """Return the RoPE of a model; None for those of which the functions alone are replaced."""
    if who in OWN_TABLES:
        return None
    try:
        return from_config(model).rope
    except (RopeConfigError, TypeError) as error:
        raise RopeError(f"cannot patch {who}: {error}") from error


# --- tables --------------------------------------------------------------------------------------


def _makes_tables(part: Any) -> bool:
    kind = type(part)
    return kind.__module__.startswith("diffusers.") and kind.__name__ in EMBEDDINGS


def _checked(name: str, part: Any, rope: RoPE | None) -> RoPE:
    """Return the RoPE of a rotary module, which has been seen to make the tables of the module.

    Raises
    ------
    RopeError
        If it makes others.
    """
    row = EMBEDDINGS[type(part).__name__]
    own = rope if row.rope is None else row.rope(part)
    who = f"{name} ({type(part).__name__})"
    if own is None:
        raise RopeError(f"cannot patch {who}: its model has no RoPE")
    arguments, named = row.probe(part, own)
    theirs = getattr(part, row.method)(*arguments, **named)
    ours = row.made(own, part, *arguments, **named)
    if not _alike(ours, theirs):
        raise RopeError(f"cannot patch {who}: its tables are not those of {own}")
    return own


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    # Buffers of a model that was cast are rounded, and Lumina 2 has complex128; these are not.
    if (ours.shape, ours.is_complex()) != (theirs.shape, theirs.is_complex()):
        return False
    close = max(_rotary.TABLES, torch.finfo(theirs.dtype).eps)
    theirs = theirs.to(device=ours.device, dtype=ours.dtype)
    return bool(torch.allclose(ours, theirs, rtol=0, atol=close))


@cached(256)
def giving_tables(kind: Any) -> type:
    """Return a class of rotary modules that make their tables by rope_xp."""
    row = EMBEDDINGS[kind.__name__]
    own = getattr(kind, row.method)

    @functools.wraps(own)
    def made(self: Any, *arguments: Any, **named: Any) -> Any:
        # Whoever makes a new module of this class gets one that does what the model's own does.
        rope = getattr(self, _ROPE, None)
        if rope is None:
            return own(self, *arguments, **named)
        with torch.no_grad():
            return row.made(rope, self, *arguments, **named)

    made.__dict__.pop("__wrapped__")
    return _classes.subclass(kind, {row.method: made}, giving_tables, (kind,))


# --- rotation ------------------------------------------------------------------------------------


@cached(512)
def _methods(kind: type) -> dict[str, FunctionType]:
    if not any(base.__module__.startswith("diffusers.") for base in kind.__mro__):
        return {}
    return _classes.methods(kind, lambda method: bool(sites.found(method)))


def rotating_now(kind: type) -> type:
    """Return a class that rotates by rope_xp where its base calls functions that rotate."""
    called = (site for method in _methods(kind).values() for site in sites.found(method))
    return rotating(kind, tuple((site.name, site.function.__code__) for site in called))


@cached(256)
def rotating(kind: type, _: tuple[tuple[str, CodeType], ...]) -> type:
    """Return such a class, made for the functions that have this code."""
    own = {}
    for name, method in _methods(kind).items():
        replacements = {}
        for site in sites.found(method):
            conventions = rotations.recognise(method.__qualname__, site)
            replacements[site.name] = rotations.replacement(site, conventions)
        own[name] = sites.rewritten(method, replacements)
    return _classes.subclass(kind, own, rotating_now, (kind,))
