"""Read the rotary embedding of a model from its Hugging Face configuration."""

from rope_xp._core.typing import Layout
from rope_xp.rope import RoPE


def from_hf_config(
    config: object, *, layout: Layout | None = None
) -> RoPE | dict[str, RoPE | None]:
    """Return the RoPE that a Hugging Face model uses.

    Parameters
    ----------
    config : dict, path or object with ``to_dict()``
        The contents of a config.json, its path or that of its directory, or a configuration object
        of transformers. Of a model of several parts the language model is taken; pass
        ``config["vision_config"]`` for another.
    layout : {"interleaved", "half", "interleaved_to_half"}, optional
        How components pair up, see :class:`RoPE`. No configuration says it. None: that of the model
        type. An unknown model type needs it; most that derive from Llama have half.

    Returns
    -------
    RoPE or dict of str to RoPE or None
        A dictionary by layer type if layers differ; None stands for layers without positions.

    Raises
    ------
    RopeConfigError
        If a key is missing, unknown or misspelt, a value impossible, or rope_type not known; if
        model_type is not known and no layout given; if the model has no rotary embedding, or one
        that no RoPE can express.
    RopeError
        If layout is none of the three.
    TypeError
        If config is none of these.
    FileNotFoundError
        If there is no such file. Nothing is downloaded; for the name of a model on the Hugging Face
        Hub the message says how to fetch its config.json.

    Notes
    -----
    All spellings are read: ``rope_parameters`` of transformers 5 and ``rope_scaling`` with
    ``rope_theta`` of 4, one dictionary or one a layer type, ``type`` for ``rope_type``, and older
    names such as ``rotary_pct`` or ``rope_local_base_freq``. The layout of the pairs, the place of
    the rotated slice and the defaults of keys, which transformers keeps in code, are a table by
    ``model_type``. Positions of M-RoPE have the components (time, height, width), those of vision
    towers (height, width).

    Examples
    --------
    >>> import rope_xp
    >>> config = {"model_type": "glm4", "head_dim": 128, "rope_theta": 1e4}
    >>> rope_xp.from_hf_config(config)
    RoPE(base=10000.0, layout='interleaved', rotary_dim=64, rotary_offset=0, scaling=None, \
position_axes=None)
    """
    from rope_xp.hf import _build  # most programs need none, and import rope_xp fast without it

    return _build.read_ropes(config, layout)
