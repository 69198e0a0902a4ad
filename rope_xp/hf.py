"""Read the rotary embedding of a model from its Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rope_xp._errors import RopeConfigError, RopeError
from rope_xp._hf import keys, rules, slices, text_models, vision_models
from rope_xp._hf.model import FLAT, Model, Parameters
from rope_xp._typing import Layout
from rope_xp.rope import RoPE


def from_hf_config(config: object) -> RoPE | dict[str, RoPE | None]:
    """Return the RoPE that a Hugging Face model uses.

    Parameters
    ----------
    config : dict, path or object with ``to_dict()``
        The configuration: the contents of a config.json, its path or that of its directory, or a
        configuration object of transformers. Of a model of several parts the language model is
        taken; pass ``config["vision_config"]`` for another.

    Returns
    -------
    RoPE or dict of str to RoPE or None
        A dictionary by layer type where layers differ; None stands for layers without positions.

    Raises
    ------
    RopeConfigError
        If a key is missing, its value impossible, or rope_type not known; if the model has no
        rotary embedding, or one that no RoPE can express.
    TypeError
        If config is none of these.
    FileNotFoundError
        If there is no such file.

    Notes
    -----
    All spellings are read: ``rope_parameters`` of transformers 5 and ``rope_scaling`` with
    ``rope_theta`` of 4, one dictionary or one a layer type, ``type`` for ``rope_type``, and older
    names such as ``rotary_pct`` or ``rope_local_base_freq``. transformers keeps the layout of the
    pairs, the place of the rotated slice and the values of missing keys in code; here they are a
    table by ``model_type``, and half layout otherwise.

    Positions of M-RoPE have the components (time, height, width), those of vision towers (height,
    width).

    Examples
    --------
    >>> import rope_xp
    >>> config = {
    ...     "model_type": "glm4",
    ...     "head_dim": 128,
    ...     "rope_theta": 10000.0,
    ...     "partial_rotary_factor": 0.5,
    ... }
    >>> rope_xp.from_hf_config(config)
    RoPE(base=10000.0, layout='interleaved', rotary_dim=64, rotary_offset=0, scaling=None, \
position_axes=None)
    """
    whole = keys.read(config)
    part = keys.language_part(whole)
    model = find(part)
    ropes = {
        label: None if parameters is None else _rope(part, model, parameters, label)
        for label, parameters in keys.layers(part, model).items()
    }
    return ropes.get(FLAT) or ropes


LONG = 1 << 40
"""More tokens than any model was trained for."""

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


def _rope(config: Mapping[str, Any], model: Model, parameters: Parameters, label: str) -> RoPE:
    where = f"rope_parameters.{label}" if label else "rope_parameters"
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
            for length in (1, LONG):  # whether both lists of LongRoPE have r/2 entries
                rope.for_length(length).frequencies(part.components)
    except RopeConfigError:
        raise
    except (RopeError, TypeError, ArithmeticError) as error:
        raise RopeConfigError(f"{where}: {error}") from error
    return rope


def _layout(config: Mapping[str, Any], model: Model) -> Layout:
    if model.layout == "interleaved_to_half" and config.get("rope_interleave") is False:
        return "half"
    return model.layout
