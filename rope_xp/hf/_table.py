"""Find the row of a model type in the tables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_xp._core.errors import RopeConfigError
from rope_xp._core.typing import Layout
from rope_xp.hf import _keys, _text_models, _vision_models
from rope_xp.hf._model import Model

MODELS = {
    name: model
    for names, model in (*_text_models.ROWS, *_vision_models.ROWS)
    for name in names.split()
}
_TYPE_KEYS = ("position_embedding_type", "position_embeddings_type")
_NOT_ROTARY = ("absolute", "alibi", "learned", "none", "nope", "relative", "sinusoidal")
_TYPE_IGNORED = ("modernbert", "modernbert-decoder")
"""Models whose files have "absolute" for an older class, and whose code does not read it."""


def find_model(config: Mapping[str, Any], layout: Layout | None = None) -> Model:
    """Return the row of the model type, with another layout if it is given.

    With a layout, an unknown type has a plain row.
    """
    row = _find_row(config)
    if layout is None and row is None:
        name = config.get("model_type")
        problem = f"model_type {name!r} is not known" if name else "model_type is missing"
        raise RopeConfigError(
            f"{problem}, and only the code of a model says how components pair up: give layout=, "
            "or --layout of inspect, such as 'half' for most that derive from Llama; or set "
            "model_type to that of the model it derives from"
        )
    name = str(config.get("model_type"))
    sizes = _text_models.SIZES.get(name) or _text_models.SIZES.get(name.removesuffix("_text"))
    model = replace(row or Model(), sizes=sizes or {})
    if layout is not None:
        return replace(model, layout=layout)
    if model.layout == "interleaved_to_half" and config.get("rope_interleave") is False:
        return replace(model, layout="half")
    return model


def _find_row(config: Mapping[str, Any]) -> Model | None:
    name = str(config.get("model_type") or "")
    _check_rotary(name, config)
    names = (name, name.removesuffix("_text"))
    for candidate in names:
        if candidate in _vision_models.UNSUPPORTED:
            raise RopeConfigError(f"model_type {name!r}: {_vision_models.UNSUPPORTED[candidate]}")
        if candidate in MODELS:
            flag = MODELS[candidate].rotary_if
            if flag is not None and config.get(flag[0]) != flag[1]:
                raise RopeConfigError(
                    f"model_type {name!r} rotates only with {flag[0]} = {flag[1]!r}; got "
                    f"{config.get(flag[0])!r}, and so it has no rotary embedding"
                )
            return MODELS[candidate]
    if not _text_models.PLAIN.isdisjoint(names):
        return Model()
    if not any(key in config for key in _keys.ROTARY_KEYS):
        raise RopeConfigError(
            f"the configuration of model_type {name!r} has no rotary embedding that is known here: "
            f"none of {', '.join(_keys.ROTARY_KEYS)}{_describe_alternatives(config)}"
        )
    return None


def find_ignored_keys(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of the position embedding that the code of the model type does not read."""
    return frozenset(_TYPE_KEYS if config.get("model_type") in _TYPE_IGNORED else ())


def _describe_alternatives(config: Mapping[str, Any]) -> str:
    """Return where else a rotary embedding may be described."""
    parts = [name for name, p in config.items() if isinstance(p, Mapping) and _is_rotary(p)]
    if parts:
        return f"; pass the part that has one alone: {', '.join(parts)}"
    if isinstance(config.get("auto_map"), Mapping):
        return (
            "; its code comes with the model (auto_map). Read there what it rotates, and write "
            "RoPE(base=..., layout=..., rotary_dim=...)"
        )
    return ""


def _is_rotary(part: Mapping[str, Any]) -> bool:
    known = part.get("model_type") in MODELS or part.get("model_type") in _text_models.PLAIN
    return known or any(key in part for key in _keys.ROTARY_KEYS)


def _check_rotary(name: str, config: Mapping[str, Any]) -> None:
    """Check that the configuration has no other position embedding. ESM, for one, has either."""
    ignored = find_ignored_keys(config)
    for key in _TYPE_KEYS:
        value = config.get(key)
        if key not in ignored and isinstance(value, str) and value.lower().startswith(_NOT_ROTARY):
            msg = f"model_type {name!r} has {key} = {value!r}, and so no rotary embedding"
            raise RopeConfigError(msg)
    if config.get("alibi"):
        raise RopeConfigError(f"model_type {name!r} has alibi, and so no rotary embedding")
