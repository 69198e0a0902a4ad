"""The row of each model type."""

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


# Values of the kind of position embedding that are not rotary. ESM, for one, has either.
_KINDS = ("position_embedding_type", "position_embeddings_type")
_OTHERS = ("absolute", "alibi", "learned", "none", "nope", "relative", "sinusoidal")
_NOT_HEEDED = ("modernbert", "modernbert-decoder")
"""Models whose files say "absolute" of an older class, and whose code does not read it."""


def find_model(config: Mapping[str, Any], layout: Layout | None = None) -> Model:
    """Return the row of the model type, with the layout that was given, if one was.

    With a layout, a plain row stands for a type that is not in the table.
    """
    row = _find_row(config)
    if layout is None and row is None:
        name = config.get("model_type")
        what = f"model_type {name!r} is not known" if name else "model_type is missing"
        msg = (
            f"{what}, and only the code of a model says how components pair up: give layout=, or "
            "--layout of inspect, such as 'half' for most that derive from Llama; or set "
            "model_type to that of the model it was made from"
        )
        raise RopeConfigError(msg)
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
            return _check_flag(name, MODELS[candidate], config)
    if not _text_models.PLAIN.isdisjoint(names):
        return Model()
    if not any(key in config for key in _keys.SAYS_ROTARY):
        msg = (
            f"the configuration of model_type {name!r} has no rotary embedding that is known here: "
            f"none of {', '.join(_keys.SAYS_ROTARY)}{_hint(config)}"
        )
        raise RopeConfigError(msg)
    return None


def not_heeded(config: Mapping[str, Any]) -> frozenset[str]:
    """Return keys on the kind of position that the code of this model type does not read."""
    return frozenset(_KINDS if config.get("model_type") in _NOT_HEEDED else ())


def _hint(config: Mapping[str, Any]) -> str:
    """Return where else a rotary embedding may be described."""
    parts = [name for name, part in config.items() if isinstance(part, Mapping) and _rotates(part)]
    if parts:
        return f"; pass the part that has one alone: {', '.join(parts)}"
    if isinstance(config.get("auto_map"), Mapping):
        return (
            "; its code comes with the model (auto_map). Read there what it rotates, and write "
            "RoPE(base=..., layout=..., rotary_dim=...)"
        )
    return ""


def _rotates(part: Mapping[str, Any]) -> bool:
    known = part.get("model_type") in MODELS or part.get("model_type") in _text_models.PLAIN
    return known or any(key in part for key in _keys.SAYS_ROTARY)


def _check_rotary(name: str, config: Mapping[str, Any]) -> None:
    """Check that the configuration does not say that its positions are of another kind."""
    for key in (each for each in _KINDS if each not in not_heeded(config)):
        kind = config.get(key)
        if isinstance(kind, str) and kind.lower().startswith(_OTHERS):
            msg = f"model_type {name!r} has {key} = {kind!r}, and so no rotary embedding"
            raise RopeConfigError(msg)
    if config.get("alibi"):
        raise RopeConfigError(f"model_type {name!r} has alibi, and so no rotary embedding")


def _check_flag(name: str, model: Model, config: Mapping[str, Any]) -> Model:
    """Return the row, unless the model rotates only if asked to, and is not."""
    if model.rotary_if is not None:
        key, value = model.rotary_if
        if config.get(key) != value:
            msg = (
                f"model_type {name!r} rotates only with {key} = {value!r}; got "
                f"{config.get(key)!r}, and so it has no rotary embedding"
            )
            raise RopeConfigError(msg)
    return model
