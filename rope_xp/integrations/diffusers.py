"""The rotary embeddings of diffusers' transformers: read from configurations, and handed over.

To read one takes neither diffusers nor torch.
"""

from typing import Any, TypeVar

from rope_xp.integrations._diffusion import config as _config
from rope_xp.integrations._diffusion.config import Positions, RotaryConfig

__all__ = ["Positions", "RotaryConfig", "from_config", "patch", "unpatch"]

ModelT = TypeVar("ModelT", bound=Any)


def from_config(config: object) -> RotaryConfig:
    """Return the RoPE of a diffusion transformer, and what makes the positions of its tokens.

    Parameters
    ----------
    config : dict, path or object
        The configuration of the transformer: the contents of its config.json, the path of that or
        of its directory, or a model of diffusers, whose ``config`` is read.

    Returns
    -------
    RotaryConfig
        A named tuple of ``rope``, a :class:`rope_xp.RoPE`, and ``positions``, a function of the
        patches of an image or video, ``positions(height, width, frames=1, text=0, fps=None)``.
        Positions have the order of the tokens of the model's attention, and a leading axis of
        components, (frame, row, column) in most.

    Raises
    ------
    RopeConfigError
        If ``_class_name`` is missing or not known, or names a model that no RoPE can express; if a
        value is impossible.
    TypeError
        If config is none of these.
    FileNotFoundError
        If there is no such file.

    Notes
    -----
    What a file leaves out, and what diffusers keeps in code, is a table by ``_class_name``.

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

    The model's rotary modules give tables that are exact at any position, of the form, shape and
    dtype that they have been, computed once for a forward pass and without float64. Its attention
    processors rotate on rope_xp's fast path. Gradients, batches for guidance, ``torch.compile``,
    attention backends, copies and pickles work as before. Other models of the type are not touched.

    Before anything is changed, each rotary module and each function that rotates is asked for a few
    values, and compared with what rope_xp makes of the configuration.

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
        If a part of the model cannot be patched, or what it does is no rotation; the message names
        it, and the model stays as it was.

    Notes
    -----
    The rotary modules, and the processors that call a function that rotates, get a class of the
    same name, made here of their own. Its methods are copies that call rope_xp's functions. A
    processor that is set later on is the model's own again; it gets exact tables.

    Of LTX, Allegro and SANA-WM the functions alone are replaced: their tables, which no RoPE of a
    whole head makes, stay their own.

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
    # Imported when it is asked for: who reads a configuration needs no torch.
    from rope_xp.integrations._diffusion import patching

    patching.patch(transformer)
    return transformer


def unpatch(transformer: ModelT) -> ModelT:
    """Undo :func:`patch`.

    Parameters
    ----------
    transformer : torch.nn.Module
        A transformer, patched or not.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If something has changed a patched module since in a way that cannot be kept; the message
        names it, and the model stays patched.
    """
    from rope_xp.integrations._diffusion import patching

    patching.unpatch(transformer)
    return transformer
