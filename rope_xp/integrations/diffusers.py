"""The rotary embeddings of diffusers' transformers: read configurations, patch models.

Reading a configuration needs neither diffusers nor torch.
"""

from typing import Any, TypeVar

from rope_xp.integrations._diffusion import config as _config
from rope_xp.integrations._diffusion.config import Positions, RotaryConfig

__all__ = ["Positions", "RotaryConfig", "from_config", "patch", "unpatch"]

ModelT = TypeVar("ModelT", bound=Any)


def from_config(config: object) -> RotaryConfig:
    """Return the RoPE of a diffusion transformer, and a function that makes its positions.

    Parameters
    ----------
    config : dict, path or object
        The transformer's config.json: its contents, its path or that of its directory; or a model.

    Returns
    -------
    RotaryConfig
        A named tuple of ``rope``, a :class:`rope_xp.RoPE`, and ``positions``, see
        :meth:`Positions.__call__`. Positions follow the order of tokens in the model's attention.
        Their leading axis holds the components, in most models (frame, row, column).

    Raises
    ------
    RopeConfigError
        If ``_class_name`` is missing or not known, or names a model that no RoPE can express; if a
        value is impossible.
    TypeError
        If config has another type.
    FileNotFoundError
        If there is no such file.

    Notes
    -----
    A table by ``_class_name`` holds the values that diffusers keeps in code, and the defaults of
    keys that a file leaves out.

    Examples
    --------
    >>> from rope_xp.integrations.diffusers import from_config
    >>> rope, positions = from_config({"_class_name": "FluxTransformer2DModel"})
    >>> rope.scaling.sections, rope.base
    ((16, 56, 56), 10000.0)
    >>> positions(2, 2, text=1).tolist()  # a token of text, and four patches
    [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 0, 1]]
    """
    return _config.from_config(config)


def patch(transformer: ModelT) -> ModelT:
    """Let rope_xp compute the angles and rotate q and k of a transformer, from now on.

    As :func:`rope_xp.integrations.transformers.patch`: the rotary modules return exact tables in
    the format and shape that the model expects, without float64 on the device, and the attention
    processors rotate on rope_xp's fast path. Batches for guidance and attention backends work as
    before.

    Parameters
    ----------
    transformer : torch.nn.Module
        A transformer of diffusers, ``pipeline.transformer``.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If a part of the model cannot be patched, or does not rotate pairs; the message names it,
        and the model stays as it was.

    Notes
    -----
    Rotary modules get a subclass with one method replaced, processors one whose methods are copies
    that call rope_xp's functions. A function of diffusers that is replaced later on is called
    instead. A processor that is set later is the model's own again; it gets exact tables.

    LTX, Allegro and SANA-WM keep their own tables, which no RoPE of a whole head makes.

    Examples
    --------
    >>> import torch
    >>> from diffusers import FluxTransformer2DModel
    >>> from rope_xp.integrations.diffusers import patch, unpatch
    >>> model = FluxTransformer2DModel(
    ...     in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
    ...     num_attention_heads=2, joint_attention_dim=8, pooled_projection_dim=8,
    ...     axes_dims_rope=(4, 4, 8),
    ... )
    >>> model = patch(model)
    >>> type(model.pos_embed).__name__
    'FluxPosEmbed'
    >>> model = unpatch(model)
    """
    # Imported here, as reading a configuration needs no torch.
    from rope_xp.integrations._diffusion import patching

    patching.patch(transformer)
    return transformer


def unpatch(transformer: ModelT) -> ModelT:
    """Undo :func:`patch` and return the model, patched or not.

    Raises
    ------
    RopeError
        If a patched module has changed since in a way that unpatching would lose; the message names
        it, and the model stays patched.
    """
    from rope_xp.integrations._diffusion import patching

    patching.unpatch(transformer)
    return transformer
