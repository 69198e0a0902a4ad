"""From a configuration to the RoPE of each layer type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rope_xp._errors import RopeConfigError, RopeError
from rope_xp._hf import keys, rules, slices, table
from rope_xp._hf.model import FLAT, Model, Parameters
from rope_xp._typing import Layout
from rope_xp.rope import RoPE

_LONG = 1 << 40
"""More tokens than any model was trained for."""


def from_config(config: object) -> RoPE | dict[str, RoPE | None]:
    """Return what :func:`rope_xp.from_hf_config` promises."""
    part = keys.language_part(keys.read(config))
    model = table.find(part)
    ropes = {
        label: None if parameters is None else _rope(part, model, parameters, label)
        for label, parameters in keys.layers(part, model).items()
    }
    return ropes.get(FLAT) or ropes


def _rope(config: Mapping[str, Any], model: Model, parameters: Parameters, label: str) -> RoPE:
    where = keys.dictionary(config) + (f".{label}" if label else "")
    try:
        rule = rules.rule(rules.Source(config, model, parameters, where))
        part = slices.find(config, model, parameters, where)
        rope = RoPE(
            part.base,
            _layout(config, model),
            part.rotary_dim,
            part.rotary_offset,
            rule,
            part.position_axes,
        )
        if part.components is not None:
            for length in (1, _LONG):  # whether both lists of LongRoPE have r/2 entries
                rope.for_length(length).frequencies(part.components)
    except RopeConfigError:
        raise
    except (RopeError, TypeError, OverflowError) as error:
        raise RopeConfigError(f"{where}: {error}") from error
    return rope


def _layout(config: Mapping[str, Any], model: Model) -> Layout:
    if model.layout == "interleaved_to_half" and config.get("rope_interleave") is False:
        return "half"
    return model.layout
