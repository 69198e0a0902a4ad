"""Check the configurations of a model, and the layouts of its functions that rotate."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp.hf import _models, _parts, from_hf_config
from rope_xp.hf._keys import EXTENDED, TRAINED
from rope_xp.integrations import _classes, _formats, _methods, _plans, _replacements, _rotary
from rope_xp.rope import RoPE
from rope_xp.scaling import DynamicNTK, LongRoPE
from rope_xp.testing._box import Floats

# Of reported errors: past a common trained context, and past 128k.
POSITIONS = (4097, 131_071)
_LAYOUTS = {
    "interleaved": "neighbours (2i, 2i + 1)",
    "half": "halves (i, i + r/2)",
    "interleaved_to_half": "neighbours, written to halves",
}


@dataclass(frozen=True)
class Finding:
    """One fault of a model's rotary embedding.

    Parameters
    ----------
    severity : {"error", "warning"}
        An error makes results wrong now; a warning may make them wrong in a later call.
    module : str
        Name of the module in the model, or of the configuration.
    kind : str
        Kind of fault, for programs: "meta", "not finite", "zero", "uninitialised", "cast",
        "rounded", "unlike the configuration", "tables cast", "attention factor", "angles",
        "autocast", "layout", "missing key", "static cache", "two regimes", "not checked".
    what : str
        The fault, as a sentence.
    effect : mapping of int to float, optional
        The largest error of cos and sin at positions 4097 and 131071, at most 2; None if unknown.
    fix : str
        The remedy.
    """

    severity: Literal["error", "warning"]
    module: str
    kind: str
    what: str
    effect: Mapping[int, float] | None
    fix: str

    def __str__(self) -> str:
        effect = (self.effect or {}).items()
        errors = "".join(f"; off by {error:.2g} at position {p}" for p, error in effect)
        return f"{self.severity}: {self.module}: {self.what}{errors}. {self.fix}"


def compute_effect(actual: Floats, expected: Floats) -> dict[int, float]:
    """Return the errors of cos and sin by frequencies that are not the expected ones, at most 2."""
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return dict.fromkeys(POSITIONS, 2.0)
    with np.errstate(all="ignore"):  # of numbers so large that they have no sine
        errors = {p: np.abs(np.exp(1j * p * actual) - np.exp(1j * p * expected)) for p in POSITIONS}
    return {p: float(np.nan_to_num(error, nan=2.0).max()) for p, error in errors.items()}


def check_configs(model: torch.nn.Module) -> Iterator[Finding]:
    groups: dict[int, tuple[Any, dict[str, torch.nn.Module]]] = {}
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            groups.setdefault(id(config), (config, {}))[1][name] = module
    for config, modules in groups.values():
        rotary = dict(_rotary.rotary_modules(next(iter(modules.values()))))
        try:
            by_label = from_hf_config(config)
        except (RopeError, TypeError) as error:
            known = _models.get_row(getattr(config, "model_type", None)) is not None
            what = f"nothing was compared with the configuration, as it cannot be read: {error}"
            fix = "Correct the configuration" if known else "Look at the code of the model"
            if any(module in rotary.values() for module in modules.values()):
                severity: Literal["error", "warning"] = "error" if known else "warning"
                yield Finding(severity, type(config).__name__, "not checked", what, None, fix)
            continue
        by_label = by_label if isinstance(by_label, dict) else {"": by_label}
        ropes = [rope for rope in by_label.values() if rope is not None]
        if ropes and rotary and not all(map(_has_fixed_length, rotary.values())):
            yield from _check_scaling(model, config, ropes)
        yield from _check_layouts(config, ropes, modules)


def _has_fixed_length(module: torch.nn.Module) -> bool:
    """Return whether patching fixed the length of a rotary module's frequencies."""
    plans = getattr(module, _plans.PLANS, None)
    return plans is not None and all(plan.beyond is None for plan in plans.values())


def _check_scaling(model: Any, config: Any, ropes: list[RoPE]) -> Iterator[Finding]:
    extended = _parts.find_part(config.to_dict()).get(EXTENDED)
    name = type(config).__name__
    for scaling in [rope.scaling for rope in ropes]:
        trained, factor = getattr(scaling, TRAINED, None), getattr(scaling, "factor", None)
        # transformers and rope_xp take the one for the other where it is missing.
        if trained and trained == extended and (factor is None or factor > 1.0):
            what = f"{TRAINED} is {trained}, the same as {EXTENDED}: either it was missing, or "
            what += "no context is extended"
            fix = f"Set rope_parameters.{TRAINED} to the length that the model was trained with"
            yield Finding("warning", name, "missing key", what, None, fix)
        if not isinstance(scaling, DynamicNTK | LongRoPE):
            continue
        limit = getattr(scaling, EXTENDED if isinstance(scaling, DynamicNTK) else TRAINED)
        changes = f"{type(scaling).__name__} changes frequencies beyond {limit} tokens"
        fix = "Fix the length by patch(model, length=n), or stay on one side of it"
        owners = getattr(model, "generation_config", None), getattr(model, "config", None)
        if any("static" in str(getattr(owner, "cache_implementation", "")) for owner in owners):
            what = f"{changes}, and the cache is static"
            yield Finding("error", name, "static cache", what, None, fix)
        elif getattr(config, "use_cache", True):
            what = f"{changes}: keys cached before and after it have different frequencies"
            yield Finding("warning", name, "two regimes", what, None, fix)


def _check_layouts(
    config: Any, ropes: list[RoPE], modules: Mapping[str, torch.nn.Module]
) -> Iterator[Finding]:
    """Yield where functions that rotate take other pairs than the model type's weights."""
    # One that takes these is enough: by configuration a class calls one of two functions, and some
    # models have an indexer with a layout of its own besides their attention.
    layouts, names = {rope.layout for rope in ropes}, dict[type, str]()
    for name, module in modules.items():
        if not _classes.is_patched(module):
            names.setdefault(type(module), name)
    calls = [(name, *call) for kind, name in names.items() for call in _find_layouts(kind)]
    if len(layouts) == 1 and calls and not layouts & {layout for *_, layout in calls}:
        (expected,), (name, function, layout) = layouts, calls[0]
        what = f"{function} rotates {_LAYOUTS[layout]}, but the weights of model_type "
        what += f"{getattr(config, 'model_type', None)!r} are for {_LAYOUTS[expected]}"
        fix = "Call the model's own function, or apply permute_weights to the q and k projections"
        yield Finding("error", name, "layout", what, None, fix)


def _find_layouts(kind: type) -> Iterator[tuple[str, Layout]]:
    """Yield the functions that a class calls, and the layout of each that rotates."""
    with contextlib.suppress(RopeError):  # an overridden method, which patch refuses
        for name, function in _methods.functions_called(kind):
            with contextlib.suppress(RopeError, ValueError, TypeError, AttributeError):
                yield name, _replacements.recognize(name, function, _formats.FORMATS).layout
