"""The row of each model type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rope_xp._errors import RopeConfigError
from rope_xp._hf import keys, text_models, vision_models
from rope_xp._hf.model import Model

MODELS = {
    name: model
    for names, model in (*text_models.ROWS, *vision_models.ROWS)
    for name in names.split()
}


def find(config: Mapping[str, Any]) -> Model:
    """Return the row of the model type; a plain one where the type is not in the table."""
    name = str(config.get("model_type") or "")
    names = (name, name.removesuffix("_text"))
    for candidate in names:
        if candidate in vision_models.UNSUPPORTED:
            raise RopeConfigError(f"model_type {name!r}: {vision_models.UNSUPPORTED[candidate]}")
        if candidate in MODELS:
            return MODELS[candidate]
    if text_models.PLAIN.isdisjoint(names) and not any(key in config for key in keys.SAYS_ROTARY):
        parts = [key for key, value in config.items() if isinstance(value, Mapping)]
        hint = f"; if one of its parts has one, pass it alone: {', '.join(parts)}" if parts else ""
        msg = (
            f"the configuration of model_type {name!r} has none of {', '.join(keys.SAYS_ROTARY)}, "
            f"and so no rotary embedding{hint}"
        )
        raise RopeConfigError(msg)
    return Model()
