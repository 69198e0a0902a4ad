"""The row of each model type."""

from collections.abc import Mapping
from typing import Any

from rope_xp._contract.errors import RopeConfigError
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


def find(config: Mapping[str, Any]) -> Model:
    """Return the row of the model type; a plain one where the type is not in the table."""
    name = str(config.get("model_type") or "")
    _check_rotary(name, config)
    names = (name, name.removesuffix("_text"))
    for candidate in names:
        if candidate in _vision_models.UNSUPPORTED:
            raise RopeConfigError(f"model_type {name!r}: {_vision_models.UNSUPPORTED[candidate]}")
        if candidate in MODELS:
            return _rotating(name, MODELS[candidate], config)
    if not _text_models.PLAIN.isdisjoint(names):
        return Model()
    if not any(key in config for key in _keys.SAYS_ROTARY):
        parts = [key for key, value in config.items() if isinstance(value, Mapping)]
        hint = f"; if one of its parts has one, pass it alone: {', '.join(parts)}" if parts else ""
        msg = (
            f"the configuration of model_type {name!r} has no rotary embedding that is known here: "
            f"none of {', '.join(_keys.SAYS_ROTARY)}{hint}"
        )
        raise RopeConfigError(msg)
    if config.get("qk_rope_head_dim") is not None:
        msg = (
            f"model_type {name!r} is not known, and models with qk_rope_head_dim have different "
            "layouts: set model_type to that of the model it was made from, such as 'deepseek_v3'"
        )
        raise RopeConfigError(msg)
    return Model()


def _check_rotary(name: str, config: Mapping[str, Any]) -> None:
    """Check that the configuration does not say that its positions are of another kind."""
    for key in _KINDS:
        kind = config.get(key)
        if isinstance(kind, str) and kind.lower().startswith(_OTHERS):
            msg = f"model_type {name!r} has {key} = {kind!r}, and so no rotary embedding"
            raise RopeConfigError(msg)
    if config.get("alibi"):
        raise RopeConfigError(f"model_type {name!r} has alibi, and so no rotary embedding")


def _rotating(name: str, model: Model, config: Mapping[str, Any]) -> Model:
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
