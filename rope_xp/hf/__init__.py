"""Read the rotary embedding of a model from its Hugging Face configuration."""

from rope_xp._arguments import fields
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp._core.typing import Layout
from rope_xp.rope import RoPE


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
        unknown without a layout; if no RoPE can express the rotary embedding.
    RopeError, TypeError
        If layout is none of the three, or config has another type.
    FileNotFoundError
        If there is no such file. Nothing is downloaded; for a name on the Hugging Face Hub the
        message says how to fetch the file.

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
    from rope_xp.hf import _build, _files, _keys, _scaling  # needed by few programs

    if layout is not None:
        fields.check_layout(layout)
    part = _keys.find_language_part(_files.read_mapping(config))
    model = _build.find_model(part, layout)
    ropes: dict[str, RoPE | None] = {}
    for label, parameters in _keys.read_layers(part, model).items():
        where = ".".join(filter(None, (_keys.parameters_key(part), label)))
        try:
            source = _scaling.Source(part, model, parameters or {}, where)
            ropes[label] = None if parameters is None else _build.build_rope(source)
        except RopeConfigError:
            raise
        except (RopeError, TypeError, OverflowError) as error:
            raise RopeConfigError(f"{where}: {error}") from error
    return ropes.get("") or ropes
