"""Patch diffusion transformers: their rotary modules, and the functions that rotate."""

import re
from collections.abc import Iterator
from typing import Any

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeConfigError, RopeError, rewording
from rope_xp.integrations import _classes, _formats, _methods, _norms
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations._diffusion.config import RotaryConfig, from_config
from rope_xp.integrations._diffusion.models import OWN_TABLES
from rope_xp.integrations._diffusion.rotary_modules import ROTARY_MODULES, TABLES_FROM_CALLER

_CONFIG = "rope_xp_config"  # the attribute of a patched rotary module that holds its RotaryConfig
# Parts of models whose attention has norms. Other blocks of Flux join q to text before they rotate.
_NORMS = re.compile(
    r"(Flux2?|Chroma)Transformer2DModel\.single_|(QwenImage|Wan|ZImage)Transformer[23]DModel"
)


def patch(model: torch.nn.Module, norm: bool) -> None:
    name = type(model).__name__
    parts = dict(_iterate_parts(model))
    _classes.check_unpatched(parts.values())
    with rewording((RopeConfigError, TypeError), f"cannot patch {name}: "):
        config = None if name in OWN_TABLES else from_config(model)
    rotary = {
        path: part
        for path, part in parts.items()
        if _is_of_diffusers(type(part)) and type(part).__name__ in ROTARY_MODULES
    }
    with torch.device("cpu"):  # whatever device the caller has set for new tensors
        for path, part in rotary.items():
            _check_tables(path, part, config)
        rotating = {
            kind for kind in dict.fromkeys(map(type, parts.values())) if _is_rotating(name, kind)
        }
    if not rotating:
        raise RopeError(f"cannot patch {name}: found no function that rotates")
    if not rotary and config is not None and name not in TABLES_FROM_CALLER:
        raise RopeError(f"cannot patch {name}: the module that computes its tables is unknown")
    classes = {kind: _classes.load_rotating(kind, rotations.build_replacement) for kind in rotating}
    classes |= {kind: load_rotary_module(kind) for kind in map(type, rotary.values())}
    norms: Any = _norms.find_norms(model, lambda p, _: _NORMS.match(f"{name}.{p}")) if norm else {}
    _classes.patch_classes(parts, classes | norms)
    for part in rotary.values():
        setattr(part, _CONFIG, config)


def unpatch(model: torch.nn.Module) -> None:
    _classes.restore_classes(_iterate_parts(model), _CONFIG)


def _iterate_parts(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model, and the other objects of diffusers in them: processors."""
    seen = set()
    for path, module in model.named_modules():
        yield path, module
        for attribute, value in list(vars(module).items()):
            is_new = id(value) not in seen and not isinstance(value, dict)
            if is_new and _is_of_diffusers(type(value)):
                seen.add(id(value))
                yield f"{path}.{attribute}", value


def _is_of_diffusers(kind: type) -> bool:
    return kind.__module__.startswith("diffusers.")


def _check_tables(path: str, part: Any, config: RotaryConfig | None) -> None:
    row = ROTARY_MODULES[type(part).__name__]
    where = f"{path} ({type(part).__name__})"
    if config is None:
        raise RopeError(f"cannot patch {where}: its model has no RoPE")
    arguments = row.arguments(part, config)
    theirs = getattr(part, row.method)(*arguments)
    # Frequencies of a model that was cast are rounded, and turn by up to 8 tokens here.
    buffers = part.buffers() if isinstance(part, torch.nn.Module) else ()
    eps = [torch.finfo(b.dtype).eps for b in buffers if b.is_floating_point()]
    limit = max(1.0, 8e5 * max(eps, default=0.0))
    if _formats.scaled_error(row.compute(config, part, *arguments), theirs) > limit:
        raise RopeError(f"cannot patch {where}: its tables are not those of {config.rope}")


@cached(256)
def load_rotary_module(kind: type) -> type:
    row = ROTARY_MODULES[kind.__name__]

    def compute(self: Any, *arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return row.compute(self.rope_xp_config, self, *arguments, **named)

    return _classes.rotary_class(kind, row.method, _CONFIG, compute, load_rotary_module)


def _is_rotating(model: str, kind: type) -> bool:
    """Return whether a class rotates q and k, after a check that its functions are known."""
    functions = _methods.functions_called(kind) if _is_of_diffusers(kind) else ()
    where = f"{model} ({kind.__name__})"
    for name, function in functions:
        key = rotations.find_key(name, function)
        if key not in rotations.ROTATIONS:
            raise RopeError(f"cannot patch {where}: rope_xp does not know {key}")
        rotations.check_rotations(where, key, function)
    return bool(functions)
