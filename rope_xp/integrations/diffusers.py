"""Rotary embeddings of diffusers' transformers: read configurations, patch models.

Reading a configuration needs neither diffusers nor torch.
"""

from typing import Any, TypeVar

from rope_xp.integrations._diffusion.config import Positions, RotaryConfig, from_config

__all__ = ["Positions", "RotaryConfig", "from_config", "patch", "unpatch"]

ModelT = TypeVar("ModelT", bound=Any)


def patch(transformer: ModelT, *, norm: bool = False) -> ModelT:
    """Make a loaded transformer compute its angles and rotate q and k with rope_xp.

    As in :func:`rope_xp.integrations.transformers.patch`, the rotary modules return exact tables in
    the model's format, without float64 on the device. The attention processors rotate on rope_xp's
    fast path. Guidance batches and attention backends work as before.

    Parameters
    ----------
    transformer : torch.nn.Module
        A transformer of diffusers, such as ``pipeline.transformer``.
    norm : bool, default False
        As in :func:`rope_xp.integrations.transformers.patch`, of Flux, Chroma, Qwen-Image and
        Z-Image.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    RopeError
        If a part of the model cannot be patched or does not rotate pairs. The message names it, and
        the model does not change.

    Notes
    -----
    A processor that you set later rotates by its own code, with exact tables. LTX, Allegro and
    SANA-WM keep their own tables, which no RoPE of a whole head can express.

    Examples
    --------
    >>> import torch
    >>> from diffusers import FluxTransformer2DModel
    >>> from rope_xp.integrations.diffusers import patch, unpatch
    >>> model = FluxTransformer2DModel(
    ...     num_layers=1, num_single_layers=1, num_attention_heads=1, joint_attention_dim=8
    ... )
    >>> model = patch(model)
    >>> type(model.pos_embed).__name__
    'FluxPosEmbed'
    >>> model = unpatch(model)
    """
    from rope_xp.integrations._diffusion import patching  # reading a configuration needs no torch

    patching.patch(transformer, norm)
    return transformer


def unpatch(transformer: ModelT) -> ModelT:
    """Undo the patch. See :func:`rope_xp.integrations.transformers.unpatch`."""
    from rope_xp.integrations._diffusion import patching

    patching.unpatch(transformer)
    return transformer
