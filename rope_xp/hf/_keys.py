"""Find what a Hugging Face configuration says under any of the names that it has had."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _hub
from rope_xp.hf._model import FLAT, Model, Parameters

# The language model inside a configuration of several parts.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
BASE = ("rope_theta", "rotary_emb_base", "rotary_embedding_base")
PARTIAL = ("partial_rotary_factor", "partial_rotary_factors", "rotary_pct", "rope_pct")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
ALIASES = {
    "hidden_size": ("n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
}
SAYS_ROTARY = (
    *("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim"),
    *(*BASE, *PARTIAL),
)

RULE = frozenset(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_dim"}
    | {"mrope_section", "xdrope_section"}
)
"""Keys of which one at least is there where rotary parameters say anything."""

KNOWN = RULE.union(
    *(("factor", "alpha", "attention_factor", "mscale", "mscale_all_dim", "truncate"),),
    *(("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "mrope_interleaved"),),
    *(("short_factor", "long_factor", "short_mscale", "long_mscale"),),
    *(("original_max_position_embeddings", "max_position_embeddings"),),
)
"""Keys that some rule reads."""

HARMLESS = frozenset(
    {
        "llama_4_scaling_beta",  # of the attention, which scales q by it
        "interleaved",  # Qwen3-Omni, whose code deals pairs to components so without it
        "finetuned",  # of the first models with YaRN, as the two below; transformers reads none
        *("attn_factor", "extrapolation_factor"),
        "apply_yarn_scaling",  # of vLLM
    }
)
"""Keys that files have beside those, and that do not change the rotation in transformers."""


def read(config: object) -> Mapping[str, Any]:
    """Return the configuration as a dictionary."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str | os.PathLike):
        import json  # not needed by those who only rotate

        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            advice = _hub.download_advice(str(config))
            if advice is None:
                raise
            raise FileNotFoundError(error.errno, advice, str(config)) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RopeConfigError(f"{path} is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise RopeConfigError(f"{path} must hold one JSON object; got {type(content).__name__}")
        return content
    if hasattr(config, "to_dict"):
        content = config.to_dict()
        if isinstance(content, Mapping):
            return content
    msg = (
        "config must be a dictionary, the path of a config.json or an object with to_dict(); got "
        f"{type(config).__name__}"
    )
    raise TypeError(msg)


def find_language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model of a configuration of several parts; itself where it is one."""
    for name in PARTS:
        if isinstance(config.get(name), Mapping):
            # A part that leaves its type out is of the family of the whole.
            return find_language_part({"model_type": config.get("model_type"), **config[name]})
    return config


def first_value(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is there and not None."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def read_size(config: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer of the configuration, None where it is not there."""
    value = first_value(config, name, *ALIASES.get(name, ()))
    if value is None:
        return None
    try:
        numbers.check_positive_int(name, value)
    except (ValueError, TypeError) as error:
        raise RopeConfigError(str(error)) from error
    return int(value)


def read_head_dim(config: Mapping[str, Any], model: Model) -> int | None:
    """Return the components of a head, None where the configuration does not say."""
    for name in HEAD_DIM:
        components = read_size(config, name)
        if components is not None:
            return components
    if "head_dim" in model.sizes:
        return model.sizes["head_dim"]
    width, *divisors = (read_size(config, name) or model.sizes.get(name) for name in model.width)
    return None if None in (width, *divisors) else width // math.prod(divisors)  # type: ignore[operator, arg-type]  # none is None


def parameters_key(config: Mapping[str, Any]) -> str:
    """Return the key of the rotary parameters; transformers 4 wrote rope_scaling."""
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def read_layers(config: Mapping[str, Any], model: Model) -> dict[str, Parameters | None]:
    """Return the rotary parameters of each layer type, under ``FLAT`` if all share them."""
    name = parameters_key(config)
    given = config.get(name) or {}
    if not isinstance(given, Mapping):
        msg = f"{name} must be a dictionary; got {given!r}"
        raise RopeConfigError(msg)
    nested = _select_nested(config, given, model)
    raw = {**_default_parameters(config, {} if nested else given, model), **nested}
    if nested:
        raw.pop(FLAT, None)
    completed: dict[str, Parameters | None] = {
        label: None if parameters is None else _complete(config, parameters, model, label)
        for label, parameters in raw.items()
    }
    no_window = "sliding_window" in config and config["sliding_window"] is None
    if FLAT in completed and model.unrotated and not (model.rotated_without_window and no_window):
        return {"sliding_attention": completed[FLAT], **dict.fromkeys(model.unrotated)}
    return completed


def _select_nested(config: Mapping[str, Any], given: Parameters, model: Model) -> dict[str, Any]:
    """Return the entries of single layer types; none where the parameters are for all."""
    kinds = config.get("layer_types") or ()
    if isinstance(kinds, str) or not isinstance(kinds, Sequence):
        raise RopeConfigError(f"layer_types must be a list of names; got {kinds!r}")
    declared = {*kinds, *model.layers}
    nested = {
        key: value
        for key, value in given.items()
        if isinstance(value, Mapping) or (value is None and key in declared)
    }
    name = parameters_key(config)
    for key, value in given.items():
        if key in declared and key not in nested:
            msg = f"{name}.{key} must be a dictionary of rotary parameters; got {value!r}"
            raise RopeConfigError(msg)
    for label, parameters in (nested or {FLAT: given}).items():
        where = f"{name}.{label}" if label else name
        if parameters and RULE.isdisjoint(parameters):
            key, value = next(iter(parameters.items()))
            msg = (
                f"{where}.{key} = {value!r} is no rule for a layer type, and {where} none for all: "
                f"it has none of {', '.join(sorted(RULE))}"
            )
            raise RopeConfigError(msg)
        _check_known(where, parameters or {})
    _check_known(name, {key: value for key, value in given.items() if key not in nested})
    return nested


def _check_known(where: str, parameters: Parameters) -> None:
    """Check that all keys are known: one that is misspelt would change the rotation unread."""
    for key, value in parameters.items():
        if key in KNOWN | HARMLESS or value is None or isinstance(value, Mapping):
            continue
        import difflib  # not needed by those whose files are right

        near = difflib.get_close_matches(key, sorted(KNOWN), n=1)
        hint = (
            f"did you mean {near[0]}?" if near else "remove it if it does not change the rotation"
        )
        raise RopeConfigError(f"{where}.{key} = {value!r} is a key that no rule reads; {hint}")


def _default_parameters(
    config: Mapping[str, Any], given: Parameters, model: Model
) -> dict[str, Parameters | None]:
    """Return the model's own parameters, with those that were given for some of its layers."""
    if FLAT in model.layers or not model.layers:
        return {FLAT: given or model.layers.get(FLAT, {})}
    if given and not model.scaled:
        msg = f"rope_parameters must have one dictionary for each of {', '.join(model.layers)}"
        raise RopeConfigError(f"{msg}; got {dict(given)!r}")
    parameters = {}
    for label, usual in model.layers.items():
        scaled = given if label in model.scaled else {}
        parameters[label] = {**(usual or {}), **_name_type(scaled)} if scaled else usual
        key = model.base_keys.get(label)
        base = None if key is None else _layer_value(config, key, label)
        # A key that is for this layer type alone says more than the dictionary.
        if base is not None and (key != "rope_theta" or scaled.get(key) is None):
            parameters[label] = {**(parameters[label] or {}), "rope_theta": base}
    return parameters


def _name_type(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters with rope_type, which may be called type."""
    return {**parameters, "rope_type": first_value(parameters, "rope_type", "type") or "default"}


def _layer_value(config: Mapping[str, Any], key: str, label: str) -> Any:
    """Return a value of the configuration, which may be a list with an entry for each layer."""
    value = config.get(key)
    if label == FLAT or not isinstance(value, list):
        return value
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        msg = f"layer_types is missing; {key} is a list with an entry for each layer: {value!r}"
        raise RopeConfigError(msg)
    return next((entry for kind, entry in zip(kinds, value, strict=False) if kind == label), None)


def _complete(
    config: Mapping[str, Any], parameters: Any, model: Model, label: str
) -> dict[str, Any]:
    """Return the parameters with rope_type, rope_theta and partial_rotary_factor filled in."""
    filled = {key: value for key, value in parameters.items() if not isinstance(value, Mapping)}
    filled = _name_type(filled)
    if model.axial and filled["rope_type"] == "default":
        filled["rope_type"] = "axial"
    usual: Parameters = model.layers.get(label) or {}
    bases = (model.base_keys[label],) if label in model.base_keys else BASE
    for name, others, default in (
        ("rope_theta", bases, model.base),
        ("partial_rotary_factor", PARTIAL, model.partial),
    ):
        elsewhere = (_layer_value(config, other, label) for other in others)
        values = (filled.get(name), *elsewhere, usual.get(name))
        filled[name] = next((value for value in values if value is not None), default)
    return filled
