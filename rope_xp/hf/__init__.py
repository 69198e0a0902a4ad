"""Read the rotary embedding of a model from its Hugging Face configuration."""

import importlib
from collections.abc import Mapping
from typing import Any

from rope_xp._core.typing import Layout
from rope_xp.hf._layer_plan import IndexerPlan, LayerPlan, NormPlan, Temperature
from rope_xp.rope import RoPE

__all__ = [
    "IndexerPlan",
    "LayerPlan",
    "NormPlan",
    "Temperature",
    "from_hf_config",
    "plan",
    "to_hf_config",
]


def from_hf_config(
    config: object, *, layout: Layout | None = None
) -> RoPE | dict[str, RoPE | None]:
    """Return the RoPE that a Hugging Face model uses.

    Parameters
    ----------
    config : dict, path or object with ``to_dict()``
        The contents of a config.json, its path, the path of its folder, or a configuration object
        of transformers. For a model of several parts, the language model is read; pass
        ``config["vision_config"]`` for the vision tower.
    layout : {"interleaved", "half", "interleaved_to_half"}, optional
        How components pair up, see :class:`RoPE`. No configuration states it. None: the layout of
        the model type. Required for an unknown model type; most that derive from Llama have half.

    Returns
    -------
    RoPE or dict of str to RoPE or None
        If layers differ, a dictionary by layer type, with None for layers that do not rotate.

    Raises
    ------
    RopeConfigError
        If a key is missing, unknown or misspelt, a value invalid, rope_type unknown, or model_type
        unknown without a layout; if no RoPE can express the rotary embedding; if the configuration
        is larger or deeper than that of any model.
    RopeError, TypeError
        If layout is none of the three, or config has another type.
    FileNotFoundError
        If there is no such file. Nothing is downloaded; for a name on the Hugging Face Hub the
        message says how to fetch the file.

    Warns
    -----
    UserWarning
        If the model type is unknown, and a key is about rotation that nothing reads.

    Notes
    -----
    All spellings are read: ``rope_parameters`` of transformers 5, ``rope_scaling`` and
    ``rope_theta`` of transformers 4, and older names such as ``rotary_pct``. Facts that only the
    code of transformers states, such as layouts and defaults, come from a table by ``model_type``.
    M-RoPE positions have components (time, height, width), those of vision towers (height, width).

    Examples
    --------
    >>> import rope_xp
    >>> config = {"model_type": "glm4", "head_dim": 128, "rope_theta": 1e4}
    >>> rope_xp.from_hf_config(config)
    RoPE(base=10000.0, layout='interleaved', rotary_dim=64, rotary_offset=0, scaling=None, \
position_axes=None)
    """
    from rope_xp.hf import _build, _files, _parts, _unread  # needed by few programs

    part = _parts.find_part(_files.read_mapping(config))
    ropes = _build.build_ropes(part, _build.find_model(part, layout))
    _unread.warn_of_unread(part, layout)
    return ropes.get("") or ropes


def to_hf_config(rope: RoPE | Mapping[str, RoPE | None], config: object) -> dict[str, Any]:
    """Return a copy of a Hugging Face configuration that has a rope's keys.

    The inverse of :func:`from_hf_config`. All rotary keys are written, so that a context is
    extended without losing the base, the rotated share or the sections.

    Parameters
    ----------
    rope : RoPE or dict of str to RoPE or None
        A dictionary by layer type where the configuration has one.
    config : dict, path or object with ``to_dict()``
        See :func:`from_hf_config`. Its spelling is kept: ``rope_parameters`` of transformers 5, or
        ``rope_theta`` and ``rope_scaling`` of 4. In a model of several parts, the language model's
        keys are written.

    Returns
    -------
    dict
        ``from_hf_config`` of it returns rope. ``max_position_embeddings`` changes only where the
        scaling has it (DynamicNTK, LongRoPE).

    Raises
    ------
    RopeConfigError
        If the model type has no keys for the rope, such as another layout; the message says which
        field differs. Also as :func:`from_hf_config`.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import rope_xp
    >>> config = {"model_type": "qwen3", "head_dim": 128, "rope_theta": 1e6}
    >>> rope = rope_xp.from_hf_config(config)
    >>> longer = replace(rope, scaling=rope_xp.scaling.YaRN(4.0, 32768))
    >>> rope_xp.to_hf_config(longer, config)["rope_scaling"]
    {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32768}
    """
    from rope_xp.hf import _write  # needed by few programs

    return _write.write_config(rope, config)


def plan(config: Any, *, layout: Layout | None = None) -> tuple[LayerPlan, ...]:
    """Return what each layer of a Hugging Face model does to q and k.

    Parameters
    ----------
    config, layout
        See :func:`from_hf_config`. Or a loaded model, also with code from the Hub. If its type is
        not known, and layout not given, it is called with a few tokens, and what its functions do
        is measured. Norms of q and k are found by their usual names (q_norm, k_norm).

    Returns
    -------
    tuple of LayerPlan
        One for each layer of the decoder, or of the encoder that was passed.

    Raises
    ------
    RopeConfigError, RopeError, TypeError, FileNotFoundError
        As :func:`from_hf_config`; also if sizes or layer types are missing and transformers is not
        installed, whose classes have defaults, if a LayerPlan cannot say what the model does, or
        if a loaded model does not run, or rotates by no function that its methods call by name.

    Examples
    --------
    >>> import rope_xp
    >>> config = {"model_type": "smollm3", "num_hidden_layers": 4, "hidden_size": 256}
    >>> config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": None}
    >>> [layer.rope is not None for layer in rope_xp.plan(config)]
    [True, True, True, False]
    """
    from rope_xp.hf import _files, _models, _parts, _plan, _unread  # needed by few programs

    model = config if hasattr(config, "named_modules") else None
    part = _parts.find_part(_files.read_mapping(config if model is None else model.config))
    if model is not None and layout is None and _models.get_row(part.get("model_type")) is None:
        # It imports torch, and stands above this layer.
        loaded = importlib.import_module("rope_xp.integrations._loaded")
        return tuple(loaded.plan_model(model, part))
    layers = _plan.build_plan(part, layout)
    _unread.warn_of_unread(part, layout)
    return layers
