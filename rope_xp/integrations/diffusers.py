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
        The configuration of the transformer: the contents of its config.json, the path of that file
        or of its directory, or a model of diffusers.

    Returns
    -------
    RotaryConfig
        A named tuple of ``rope``, a :class:`rope_xp.RoPE`, and ``positions``, a function of the
        size of an image or video in patches, ``positions(height, width, frames=1, text=0,
        fps=None)``. Positions follow the order of tokens in the model's attention. Their leading
        axis holds the components, in most models (frame, row, column).

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

    The rotary modules return tables that are exact at any position, in the format and shape that
    the model expects, computed once per forward pass and without float64. The attention processors
    rotate on rope_xp's fast path. Gradients, batches for guidance, ``torch.compile``, attention
    backends, copies and pickles work as before. Other models of the class do not change.

    Before anything changes, each rotary module and each function that rotates is compared with
    rope_xp on a few values.

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
    Rotary modules and processors get a subclass of their class, of the same name. That of a rotary
    module replaces one method. That of a processor runs the processor's own method, and meanwhile
    the functions of diffusers that rotate call rope_xp in that thread. A processor that is set
    later is the model's own again; it gets exact tables.

    LTX, Allegro and SANA-WM keep their own tables, which no RoPE of a whole head makes; only their
    functions are replaced.

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
        If a patched module has changed since in a way that unpatching would lose; the message names
        it, and the model stays patched.
    """
    from rope_xp.integrations._diffusion import patching

    patching.unpatch(transformer)
    return transformer
