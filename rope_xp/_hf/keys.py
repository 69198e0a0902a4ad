"""Find what a Hugging Face configuration says under any of the names that it has had."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_xp import _fields
from rope_xp._errors import RopeConfigError
from rope_xp._hf.model import FLAT, Model, Parameters

# The language model inside a configuration of several parts.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
BASE = ("rope_theta", "rotary_emb_base", "rotary_embedding_base")
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
ALIASES = {
    "hidden_size": ("n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
}
SAYS_ROTARY = (
    *("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim"),
    *(*BASE, *PARTIAL),
)


def read(config: object) -> Mapping[str, Any]:
    """Return the configuration as a dictionary."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise RopeConfigError(f"{path} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise RopeConfigError(f"{path} must hold one JSON object; got {type(found).__name__}")
        return found
    if hasattr(config, "to_dict"):
        found = config.to_dict()
        if isinstance(found, Mapping):
            return found
    msg = (
        "config must be a dictionary, the path of a config.json or an object with to_dict(); got "
        f"{type(config).__name__}"
    )
    raise TypeError(msg)


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model of a configuration of several parts; itself where it is one."""
    for name in PARTS:
        if isinstance(config.get(name), Mapping):
            return language_part(config[name])
    return config


def first(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is there and not None."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def size(config: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer of the configuration, None where it is not there."""
    value = first(config, name, *ALIASES.get(name, ()))
    if value is None:
        return None
    try:
        _fields.check_positive_int(name, value)
    except (ValueError, TypeError) as error:
        raise RopeConfigError(str(error)) from error
    return int(value)


def head_dim(config: Mapping[str, Any], model: Model) -> int | None:
    """Return the components of a head, None where the configuration does not say."""
    for name in HEAD_DIM:
        found = size(config, name)
        if found is not None:
            return found
    found, *divisors = (size(config, name) for name in model.width)
    return None if None in (found, *divisors) else found // math.prod(divisors)  # type: ignore[operator, arg-type]  # none is None


def layers(config: Mapping[str, Any], model: Model) -> dict[str, Parameters | None]:
    """Return the rotary parameters of each layer type, under ``FLAT`` if all share them."""
    given = first(config, "rope_scaling", "rope_parameters") or {}
    if not isinstance(given, Mapping):
        msg = f"rope_parameters must be a dictionary; got {given!r}"
        raise RopeConfigError(msg)
    own = _nested(config, given, model) or _by_default(given, model)
    return {
        label: None if parameters is None else _completed(config, parameters, model, label)
        for label, parameters in own.items()
    }


def _nested(config: Mapping[str, Any], given: Parameters, model: Model) -> dict[str, Any]:
    """Return the entries of single layer types; none where the parameters are for all."""
    declared = {*(config.get("layer_types") or ()), *model.layers}
    return {
        key: value
        for key, value in given.items()
        if isinstance(value, Mapping) or (value is None and key in declared)
    }


def _by_default(given: Parameters, model: Model) -> dict[str, Any]:
    """Return the model's own parameters, with those that were given for some of its layers."""
    if FLAT in model.layers or not model.layers:
        return {FLAT: given or model.layers.get(FLAT, {})}
    return {
        label: {**(usual or {}), **given} if given and label in model.scaled else usual
        for label, usual in model.layers.items()
    }


def _completed(
    config: Mapping[str, Any], parameters: Any, model: Model, label: str
) -> dict[str, Any]:
    """Return the parameters with rope_type, rope_theta and partial_rotary_factor filled in."""
    if not isinstance(parameters, Mapping):
        msg = f"rope_parameters[{label!r}] must be a dictionary or null; got {parameters!r}"
        raise RopeConfigError(msg)
    filled = {key: value for key, value in parameters.items() if not isinstance(value, Mapping)}
    rope_type = first(filled, "rope_type", "type") or "default"
    filled["rope_type"] = "axial" if model.axial and rope_type == "default" else rope_type
    usual: Parameters = model.layers.get(label) or {}
    names = (model.base_keys[label],) if label in model.base_keys else BASE
    base = first(filled, "rope_theta") or first(config, *names)
    filled["rope_theta"] = base or usual.get("rope_theta", model.base)
    partial = first(filled, "partial_rotary_factor") or first(config, *PARTIAL)
    filled["partial_rotary_factor"] = partial or usual.get("partial_rotary_factor", model.partial)
    return filled
