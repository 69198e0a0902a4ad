"""Look up keys of a Hugging Face configuration under all names that they have had."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf._model import FLAT, Model, Parameters

# The language model within a configuration of several parts.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
BASE = ("rope_theta", "rotary_emb_base", "rotary_embedding_base")
PARTIAL = ("partial_rotary_factor", "partial_rotary_factors", "rotary_pct", "rope_pct")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
ALIASES = {
    "hidden_size": ("n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
}
ROTARY_KEYS = (
    *("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim"),
    *(*BASE, *PARTIAL),
)

_ESSENTIAL = frozenset(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_dim"}
    | {"mrope_section", "xdrope_section"}
)
"""Rotary parameters have at least one of these keys."""

_KNOWN = _ESSENTIAL.union(
    ("factor", "alpha", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "mrope_interleaved"),
    ("short_factor", "long_factor", "short_mscale", "long_mscale"),
    ("original_max_position_embeddings", "max_position_embeddings"),
)
"""Keys that are read."""

_IGNORED = frozenset(
    {
        "llama_4_scaling_beta",  # the attention scales q by it
        "interleaved",  # of Qwen3-Omni, whose sections are interleaved without it
        "finetuned",  # of the first models with YaRN, as the two below; transformers reads none
        *("attn_factor", "extrapolation_factor"),
        "apply_yarn_scaling",  # of vLLM
    }
)
"""Keys of files that do not change the rotation in transformers."""


def find_language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the language model; the configuration itself if it has no parts."""
    for name in PARTS:
        if isinstance(config.get(name), Mapping):
            # A part without a type has that of the whole.
            return find_language_part({"model_type": config.get("model_type"), **config[name]})
    return config


def first_value(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is not None."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def read_size(config: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer of the configuration; None if it is missing."""
    value = first_value(config, name, *ALIASES.get(name, ()))
    if value is None:
        return None
    try:
        numbers.check_positive_int(name, value)
    except (ValueError, TypeError) as error:
        raise RopeConfigError(str(error)) from error
    return int(value)


def read_head_dim(config: Mapping[str, Any], model: Model) -> int | None:
    """Return the components of a head; None if sizes are missing."""
    for name in HEAD_DIM:
        components = read_size(config, name)
        if components is not None:
            return components
    if "head_dim" in model.sizes:
        return model.sizes["head_dim"]
    width, *divisors = (read_size(config, name) or model.sizes.get(name) for name in model.width)
    return None if None in (width, *divisors) else width // math.prod(divisors)  # type: ignore[operator, arg-type]  # not None


def parameters_key(config: Mapping[str, Any]) -> str:
    """Return the key of the rotary parameters; transformers 4 wrote rope_scaling."""
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def read_layers(config: Mapping[str, Any], model: Model) -> dict[str, Parameters | None]:
    """Return the rotary parameters of each layer type, under ``FLAT`` if all share them."""
    name = parameters_key(config)
    written = config.get(name) or {}
    if not isinstance(written, Mapping):
        raise RopeConfigError(f"{name} must be a dictionary; got {written!r}")
    nested = _select_nested(config, written, model)
    raw = {**_default_parameters(config, {} if nested else written, model), **nested}
    if nested:
        raw.pop(FLAT, None)
    completed: dict[str, Parameters | None] = {
        label: None if parameters is None else _fill_in(config, parameters, model, label)
        for label, parameters in raw.items()
    }
    no_window = "sliding_window" in config and config["sliding_window"] is None
    if FLAT in completed and model.unrotated and not (model.rotated_without_window and no_window):
        return {"sliding_attention": completed[FLAT], **dict.fromkeys(model.unrotated)}
    return completed


def _select_nested(config: Mapping[str, Any], written: Parameters, model: Model) -> dict[str, Any]:
    """Return the parameters of single layer types; empty if all layers share them."""
    layer_types = config.get("layer_types") or ()
    if isinstance(layer_types, str) or not isinstance(layer_types, Sequence):
        raise RopeConfigError(f"layer_types must be a list of names; got {layer_types!r}")
    declared = {*layer_types, *model.layers}
    nested = {
        key: value
        for key, value in written.items()
        if isinstance(value, Mapping) or (value is None and key in declared)
    }
    name = parameters_key(config)
    for key, value in written.items():
        if key in declared and key not in nested:
            msg = f"{name}.{key} must be a dictionary of rotary parameters; got {value!r}"
            raise RopeConfigError(msg)
    for label, parameters in (nested or {FLAT: written}).items():
        where = f"{name}.{label}" if label else name
        if parameters and _ESSENTIAL.isdisjoint(parameters):
            key, value = next(iter(parameters.items()))
            raise RopeConfigError(
                f"{where}.{key} = {value!r} is no dictionary of a layer type, and {where} has "
                f"none of {', '.join(sorted(_ESSENTIAL))}"
            )
        _check_known(where, parameters or {})
    _check_known(name, {key: value for key, value in written.items() if key not in nested})
    return nested


def _check_known(where: str, parameters: Parameters) -> None:
    """Check that all keys are known: a misspelt one would change the rotation unread."""
    for key, value in parameters.items():
        if key in _KNOWN | _IGNORED or value is None or isinstance(value, Mapping):
            continue
        import difflib  # needed for errors alone

        near = difflib.get_close_matches(key, sorted(_KNOWN), n=1)
        remove = "remove it if it does not change the rotation"
        hint = f"did you mean {near[0]}?" if near else remove
        raise RopeConfigError(f"{where}.{key} = {value!r} is an unknown key; {hint}")


def _default_parameters(
    config: Mapping[str, Any], flat: Parameters, model: Model
) -> dict[str, Parameters | None]:
    """Return the parameters of the table, with the flat ones for the layers that they scale."""
    if FLAT in model.layers or not model.layers:
        return {FLAT: flat or model.layers.get(FLAT, {})}
    if flat and not model.scaled:
        msg = f"rope_parameters must have one dictionary for each of {', '.join(model.layers)}"
        raise RopeConfigError(f"{msg}; got {dict(flat)!r}")
    parameters = {}
    for label, default in model.layers.items():
        scaled = flat if label in model.scaled else {}
        parameters[label] = {**(default or {}), **_add_rope_type(scaled)} if scaled else default
        key = model.base_keys.get(label)
        base = None if key is None else _layer_value(config, key, label)
        # A key of this layer type alone takes precedence over the dictionary.
        if base is not None and (key != "rope_theta" or scaled.get(key) is None):
            parameters[label] = {**(parameters[label] or {}), "rope_theta": base}
    return parameters


def _add_rope_type(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters with rope_type, whose old name is type."""
    return {**parameters, "rope_type": first_value(parameters, "rope_type", "type") or "default"}


def _layer_value(config: Mapping[str, Any], key: str, label: str) -> Any:
    """Return a value of the configuration, which may be a list with an entry for each layer."""
    value = config.get(key)
    if label == FLAT or not isinstance(value, list):
        return value
    layer_types = config.get("layer_types")
    if not isinstance(layer_types, list):
        msg = f"layer_types is missing; {key} is a list with an entry for each layer: {value!r}"
        raise RopeConfigError(msg)
    return next(
        (entry for name, entry in zip(layer_types, value, strict=False) if name == label), None
    )


def _fill_in(
    config: Mapping[str, Any], parameters: Any, model: Model, label: str
) -> dict[str, Any]:
    """Return the parameters with rope_type, rope_theta and partial_rotary_factor filled in."""
    filled = {key: value for key, value in parameters.items() if not isinstance(value, Mapping)}
    filled = _add_rope_type(filled)
    if model.axial and filled["rope_type"] == "default":
        filled["rope_type"] = "axial"
    table: Parameters = model.layers.get(label) or {}
    bases = (model.base_keys[label],) if label in model.base_keys else BASE
    for name, others, default in (
        ("rope_theta", bases, model.base),
        ("partial_rotary_factor", PARTIAL, model.partial),
    ):
        elsewhere = (_layer_value(config, other, label) for other in others)
        values = (filled.get(name), *elsewhere, table.get(name))
        filled[name] = next((value for value in values if value is not None), default)
    return filled
