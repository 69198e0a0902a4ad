"""Build the RoPE of each layer type of a Hugging Face configuration."""

from collections.abc import Mapping
from typing import Any

from rope_xp._arguments import fields
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp._core.typing import Layout
from rope_xp.hf import _files, _keys, _scaling, _slices, _table
from rope_xp.hf._model import FLAT, Model, Parameters
from rope_xp.rope import RoPE


def read_ropes(config: object, layout: Layout | None = None) -> RoPE | dict[str, RoPE | None]:
    """Implement :func:`rope_xp.from_hf_config`."""
    if layout is not None:
        fields.check_layout(layout)
    part = _keys.find_language_part(_files.read_mapping(config))
    model = _table.find_model(part, layout)
    ropes = {
        label: None if parameters is None else _build_rope(part, model, parameters, label)
        for label, parameters in _keys.read_layers(part, model).items()
    }
    return ropes.get(FLAT) or ropes


def _build_rope(
    config: Mapping[str, Any], model: Model, parameters: Parameters, label: str
) -> RoPE:
    where = _keys.parameters_key(config) + (f".{label}" if label else "")
    try:
        scaling = _scaling.read_scaling(_scaling.Source(config, model, parameters, where))
        slice_fields, components = _slices.find_slice(config, model, parameters)
        rope = RoPE(layout=model.layout, scaling=scaling, **slice_fields)
        if components is not None:
            for length in (1, 1 << 40):  # raises unless both lists of LongRoPE have r/2 entries
                rope.for_length(length).frequencies(components)
    except RopeConfigError:
        raise
    except (RopeError, TypeError, OverflowError) as error:
        raise RopeConfigError(f"{where}: {error}") from error
    return rope
