"""Patch diffusion transformers: their rotary modules, and the functions that rotate."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.integrations import _classes, _methods
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations._diffusion.config import RotaryConfig, from_config
from rope_xp.integrations._diffusion.models import OWN_TABLES
from rope_xp.integrations._diffusion.rotary_modules import ROTARY_MODULES, TABLES_FROM_CALLER
from rope_xp.integrations._diffusion.rotations import ROTATIONS
from rope_xp.integrations._diffusion.tables import are_close
from rope_xp.integrations._methods import Function

_CONFIG = "rope_xp_config"
"""The attribute of a patched rotary module that holds its RotaryConfig."""


def patch(model: torch.nn.Module) -> None:
    """Implement :func:`rope_xp.integrations.diffusers.patch`."""
    name = type(model).__name__
    parts = dict(_parts(model))
    _classes.check_unpatched(parts.values())
    config = _read_config(model, name)
    rotary = {path: part for path, part in parts.items() if _is_rotary_module(part)}
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        for path, part in rotary.items():
            _check_tables(path, part, config)
        rotating = {kind for kind in map(type, parts.values()) if _check_functions(name, kind)}
    if not rotating:
        raise RopeError(f"cannot patch {name}: no function that rotates was found")
    if not rotary and config is not None and name not in TABLES_FROM_CALLER:
        raise RopeError(f"cannot patch {name}: the module that makes its tables is not known")
    for path, part in parts.items():
        if path in rotary or type(part) in rotating:
            _classes.check_forward(path, part, "patch")
    classes = {kind: load_processor(kind) for kind in rotating}
    classes |= {type(part): load_rotary_module(type(part)) for part in rotary.values()}
    for part in parts.values():
        if type(part) in classes:
            _classes.exchange(part, classes[type(part)])
    for part in rotary.values():
        setattr(part, _CONFIG, config)


def unpatch(model: torch.nn.Module) -> None:
    """Implement :func:`rope_xp.integrations.diffusers.unpatch`."""
    _classes.restore(_parts(model), _CONFIG)


def _parts(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model, and the other objects of diffusers in them: processors."""
    seen = set()
    for path, module in model.named_modules():
        yield path, module
        for attribute, value in list(vars(module).items()):
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
    """Check that the tables of a rotary module are those of its configuration."""
    row = ROTARY_MODULES[type(part).__name__]
    where = f"{path} ({type(part).__name__})"
    if config is None:
        raise RopeError(f"cannot patch {where}: its model has no RoPE")
    arguments = row.arguments(part, config)
    theirs = getattr(part, row.method)(*arguments)
    if not are_close(row.compute(config, part, *arguments), theirs):
        raise RopeError(f"cannot patch {where}: its tables are not those of {config.rope}")


@cached(256)
def load_rotary_module(kind: type) -> type:
    """Return the subclass of a rotary module that computes its tables by rope_xp."""
    row = ROTARY_MODULES[kind.__name__]

    def compute(self: Any, *arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return row.compute(self.rope_xp_config, self, *arguments, **named)

    return _classes.rotary_class(kind, row.method, _CONFIG, compute, load_rotary_module)


# --- processors ----------------------------------------------------------------------------------


def functions_called(kind: type) -> tuple[tuple[str, Function], ...]:
    """Return the functions that rotate which the methods of a class of diffusers call."""
    return _methods.functions_called(kind) if kind.__module__.startswith("diffusers.") else ()


def _check_functions(model: str, kind: type) -> bool:
    """Return whether a class rotates q and k, by functions that do so in a known way.

    Raises
    ------
    RopeError
        If a function is not known, or does something else.
    """
    functions = functions_called(kind)
    where = f"{model} ({kind.__name__})"
    for name, function in functions:
        key = rotations.find_key(name, function)
        if key not in ROTATIONS:
            raise RopeError(f"cannot patch {where}: rope_xp does not know {key}")
        rotations.check(where, key, function, ROTATIONS[key])
    return bool(functions)


@cached(256)
def _processor_class(kind: type, _: tuple[tuple[str, Function], ...]) -> type:
    def replace(name: str, original: Function, module: ModuleType | None) -> Function:
        rows = ROTATIONS[rotations.find_key(name, original)]

        def rotate(*arguments: Any, **options: Any) -> Any:
            if module is not None and getattr(module, name) is not original:  # replaced since
                return getattr(module, name)(*arguments, **options)
            return rotations.rotate_like(rows, original, *arguments, **options)

        rotate.replaces = original, rows  # type: ignore[attr-defined]  # see Replace
        return rotate

    return _classes.rotating_class(kind, replace, load_processor, (kind,))


def load_processor(kind: type) -> type:
    """Return the subclass of a processor that rotates by rope_xp.

    The module of a class may hold other functions by now, which are then replaced.
    """
    return _processor_class(kind, functions_called(kind))
