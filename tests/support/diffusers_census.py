"""What of diffusers rotates: its rotary modules, how each is made small, what is left and why."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

_ROOMS = ("transformers", "autoencoders", "condition_embedders", "controlnets")
_EMBEDDING = re.compile(r"\w*(Rotary|Rope|RoPE)\w*|\w*EmbedND\d?|\w+[a-z\d]PosEmbed")
_FUNCTION = re.compile(r"_?apply_\w*(rotary|rope)\w*|rope_apply")


def modules() -> Iterator[Any]:
    """Yield the modules of diffusers that hold models."""
    yield importlib.import_module("diffusers.models.attention_processor")
    yield importlib.import_module("diffusers.models.embeddings")
    for room in _ROOMS:
        package = importlib.import_module(f"diffusers.models.{room}")
        for entry in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{entry.name}")


def _own_classes(module: Any) -> Iterator[type]:
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield value


def embeddings() -> dict[str, type]:
    """Return the classes that make tables of cos and sin, by the name that tells them apart."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{kind.__name__}": kind
        for module in modules()
        for kind in _own_classes(module)
        if _EMBEDDING.fullmatch(kind.__name__)
    }


def methods() -> dict[str, type]:
    """Return the classes with a method that calls a function that rotates, by the method's name."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{member.__qualname__}": kind
        for module in modules()
        for kind in _own_classes(module)
        for member in list(vars(kind).values())
        if isinstance(member, FunctionType)
        and any(map(_FUNCTION.fullmatch, _names(member.__code__)))
        and not _FUNCTION.fullmatch(member.__name__)
    }


def _names(code: Any) -> Iterator[str]:
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


class SmallModule(NamedTuple):
    """The arguments of a small rotary module, and the configuration of its model."""

    fields: dict[str, Any]
    config: dict[str, Any]


def _small(fields: dict[str, Any], model: str, **config: Any) -> SmallModule:
    return SmallModule(fields, {"_class_name": model, **config})


_SECTIONS = (4, 6, 6)
_FOUR = {"axes_dim": (4, 4, 4, 4)}
_FLUX = {"axes_dims_rope": _SECTIONS}
_WAN = {"attention_head_dim": 16, "patch_size": (1, 2, 2), "max_seq_len": 32}
_QWEN = {"theta": 10000, "axes_dim": list(_SECTIONS), "scale_rope": True}
_LUMINA = {"theta": 10000, "axes_dim": _SECTIONS, "axes_lens": (32, 32, 32), "patch_size": 2}
_COSMOS = {"hidden_size": 24, "max_size": (16, 32, 32), "rope_scale": (2.0, 1.0, 3.0)}
_IDEOGRAM = {"head_dim": 24, "base": 5e6, "mrope_section": (6, 3, 3)}


def _of_ids(model: str, base: float = 10000.0) -> SmallModule:
    fields = {"theta": base, "axes_dim": _SECTIONS}
    return _small(fields, model, **_FLUX, rope_theta=base)


def _of_wan(model: str, head_dim: int = 16) -> SmallModule:
    return _small(_WAN | {"attention_head_dim": head_dim}, model, attention_head_dim=head_dim)


def _of_hunyuan(model: str) -> SmallModule:
    fields = {"patch_size": 2, "patch_size_t": 1, "rope_dim": _SECTIONS, "theta": 256.0}
    return _small(fields, model, rope_axes_dim=_SECTIONS, rope_theta=256.0)


def _of_z_image() -> SmallModule:
    fields = {"theta": 256.0, "axes_dims": _SECTIONS, "axes_lens": (32, 32, 32)}
    return _small(fields, "ZImageTransformer2DModel", axes_dims=_SECTIONS)


def _of_kandinsky(model: str) -> SmallModule:
    fields = {"axes_dims": _SECTIONS, "max_pos": (32, 32, 32)}
    return _small(fields, model, axes_dims=_SECTIONS)


SMALL: dict[str, SmallModule] = {
    "transformer_flux.FluxPosEmbed": _of_ids("FluxTransformer2DModel"),
    "transformer_flux2.Flux2PosEmbed": _small(
        {"theta": 2000, **_FOUR}, "Flux2Transformer2DModel", axes_dims_rope=(4, 4, 4, 4)
    ),
    "transformer_flux3.Flux3PosEmbed": _small(
        {"theta": 10000, **_FOUR}, "Flux3Transformer2DModel", axes_dims_rope=(4, 4, 4, 4)
    ),
    "transformer_krea2.Krea2RotaryPosEmbed": _of_ids("Krea2Transformer2DModel", 1000.0),
    "transformer_bria.BriaEmbedND": _of_ids("BriaTransformer2DModel", 500.0),
    "transformer_bria.BriaPosEmbed": _of_ids("BriaTransformer2DModel"),
    "transformer_bria_fibo.BriaFiboEmbedND": _of_ids("BriaFiboTransformer2DModel"),
    "transformer_longcat_image.LongCatImagePosEmbed": _of_ids("LongCatImageTransformer2DModel"),
    "transformer_ovis_image.OvisImagePosEmbed": _of_ids("OvisImageTransformer2DModel"),
    "transformer_minimax_h3.MiniMaxH3RotaryPosEmbed": _small(
        {"rope_freq_dim": 3}, "MiniMaxH3Transformer3DModel", rope_freq_dim=3
    ),
    "transformer_z_image.RopeEmbedder": _of_z_image(),
    "controlnet_z_image.RopeEmbedder": _of_z_image(),
    "transformer_bria_fibo2.RopeEmbedder": _of_z_image(),
    "transformer_ideogram4.Ideogram4MRoPE": _small(
        _IDEOGRAM, "Ideogram4Transformer2DModel", attention_head_dim=24, mrope_section=(6, 3, 3)
    ),
    "transformer_lumina2.Lumina2RotaryPosEmbed": _small(
        _LUMINA, "Lumina2Transformer2DModel", axes_dim_rope=_SECTIONS
    ),
    "transformer_hidream_image.HiDreamImageEmbedND": _of_ids("HiDreamImageTransformer2DModel"),
    "transformer_prx.PRXEmbedND": _small(
        {"dim": 16, "theta": 10000, "axes_dim": [8, 8]}, "PRXTransformer2DModel", axes_dim=[8, 8]
    ),
    "transformer_wan.WanRotaryPosEmbed": _of_wan("WanTransformer3DModel"),
    "transformer_wan_animate.WanRotaryPosEmbed": _of_wan("WanAnimateTransformer3DModel"),
    "transformer_sana_video.WanRotaryPosEmbed": _of_wan("SanaVideoTransformer3DModel"),
    "transformer_skyreels_v2.SkyReelsV2RotaryPosEmbed": _of_wan("SkyReelsV2Transformer3DModel"),
    "transformer_chronoedit.ChronoEditRotaryPosEmbed": _of_wan("ChronoEditTransformer3DModel", 24),
    "transformer_hunyuan_video.HunyuanVideoRotaryPosEmbed": _of_hunyuan(
        "HunyuanVideoTransformer3DModel"
    ),
    "transformer_hunyuan_video15.HunyuanVideo15RotaryPosEmbed": _of_hunyuan(
        "HunyuanVideo15Transformer3DModel"
    ),
    "transformer_hunyuan_video_framepack.HunyuanVideoFramepackRotaryPosEmbed": _of_hunyuan(
        "HunyuanVideoFramepackTransformer3DModel"
    ),
    "transformer_motif_video.MotifVideoRotaryPosEmbed": _of_hunyuan("MotifVideoTransformer3DModel"),
    "transformer_hunyuanimage.HunyuanImageRotaryPosEmbed": _small(
        {"patch_size": (1, 2), "rope_dim": (6, 10)},
        "HunyuanImageTransformer2DModel",
        rope_axes_dim=(6, 10),
    ),
    "transformer_helios.HeliosRotaryPosEmbed": _small(
        {"rope_dim": _SECTIONS, "theta": 10000.0}, "HeliosTransformer3DModel", rope_dim=_SECTIONS
    ),
    "transformer_cosmos.CosmosRotaryPosEmbed": _small(
        _COSMOS, "CosmosTransformer3DModel", attention_head_dim=24, rope_scale=(2.0, 1.0, 3.0)
    ),
    "transformer_cogview4.CogView4RotaryPosEmbed": _small(
        {"dim": 16, "patch_size": 2, "rope_axes_dim": (32, 16)},
        "CogView4Transformer2DModel",
        attention_head_dim=16,
        rope_axes_dim=(32, 16),
    ),
    "transformer_glm_image.GlmImageRotaryPosEmbed": _small(
        {"dim": 16, "patch_size": 2}, "GlmImageTransformer2DModel", attention_head_dim=16
    ),
    "transformer_easyanimate.EasyAnimateRotaryPosEmbed": _small(
        {"patch_size": 2, "rope_dim": 16}, "EasyAnimateTransformer3DModel", attention_head_dim=16
    ),
    "transformer_qwenimage.QwenEmbedRope": _small(_QWEN, "QwenImageTransformer2DModel", **_FLUX),
    "transformer_qwenimage.QwenEmbedLayer3DRope": _small(
        _QWEN, "QwenImageTransformer2DModel", **_FLUX
    ),
    "transformer_nucleusmoe_image.NucleusMoEEmbedRope": _small(
        _QWEN, "NucleusMoEImageTransformer2DModel", **_FLUX
    ),
    "transformer_longcat_audio_dit.AudioDiTRotaryEmbedding": _small(
        {"dim": 16, "base": 1e5}, "LongCatAudioDiTTransformer", dit_dim=32, dit_heads=2
    ),
    "transformer_minimax_music3.MiniMaxMusic3RotaryEmbedding": _small(
        {"rotary_dim": 8}, "MiniMaxMusic3Transformer1DModel", rotary_dim=8
    ),
    "transformer_kandinsky.Kandinsky5RoPE1D": _small(
        {"dim": 16}, "AceStepTransformer1DModel", head_dim=16, rope_theta=10000.0
    ),
    "transformer_kandinsky.Kandinsky5RoPE3D": _of_kandinsky("Kandinsky5Transformer3DModel"),
    "transformer_kandinsky6.Kandinsky6RoPE3D": _of_kandinsky("Kandinsky6Transformer3DModel"),
    "transformer_kandinsky6_sr.Kandinsky6SRRoPE3D": _of_kandinsky("Kandinsky6SRTransformer3DModel"),
}
"""Rotary modules whose tables rope_xp makes, by their class."""

NO_PAIRS: dict[str, str] = {
    "embeddings.FluxPosEmbed": "a name that is deprecated, which makes one of transformer_flux",
    "transformer_ernie_image.ErnieImageEmbedND3": "gives the halves of a pair two angles",
    "transformer_mochi.MochiRoPE": "learned, a set of frequencies for each head",
}
"""Classes that are no rotary embedding with fixed frequencies."""

_LTX = "frequencies base ** linspace(0, 1) * pi/2 over all heads at once, of fractions of a video"
LEFT_EMBEDDINGS: dict[str, str] = {
    "transformer_ltx.LTXVideoRotaryPosEmbed": _LTX,
    "transformer_ltx2.LTX2AudioVideoRotaryPosEmbed": _LTX,
    "transformer_sana_wm_refiner.SanaWMLTX2AudioVideoRotaryPosEmbed": _LTX,
    "ltx2_diffusion_decoder.LTX2VideoVaeRotaryPosEmbed3D": "rotates x itself, an axis at a time",
    "transformer_anyflow.AnyFlowRotaryPosEmbed": "grids of several resolutions, in a dictionary",
    "transformer_anyflow_far.AnyFlowCausalRotaryPosEmbed": "the same",
    "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding": "M-RoPE, rotated without a function",
    "transformer_kandinsky6.Kandinsky6RoPE1D": "its frequencies are scaled by a list of the model",
    "transformer_omnigen.OmniGenSuScaledRotaryEmbedding": "LongRoPE that is chosen call by call",
    "transformer_qwenimage21.QwenImage21Rope": "text and images take turns, as a mask says",
    "transformer_sana_wm.SanaWMRotaryPosEmbed": "split at other places than it is made",
    "transformer_stable_audio3.StableAudio3RotaryEmbedding": "gives angles, and no cos and sin",
    "autoencoder_same.RotaryEmbedding": "gives angles, and no cos and sin",
    "autoencoder_kl_minimax_h3.MiniMaxH3VideoRotaryPosEmbed": "of an autoencoder",
    "condition_embedder_anima.AnimaRotaryEmbedding": "of an embedder of conditions",
}
"""Classes that rotate pairs and keep their own tables."""

NO_ROTATION: dict[str, str] = {
    "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding.forward": "sorts angles, and rotates nothing",
}
"""Methods that call what is named as if it rotated."""

_REFUSED = "of models that are refused"
LEFT_METHODS: dict[str, str] = {
    "attention_processor.MochiAttnProcessor2_0.__call__": _REFUSED,
    "transformer_anyflow.AnyFlowAttnProcessor.__call__": _REFUSED,
    "transformer_anyflow_far.AnyFlowAttnProcessor.__call__": _REFUSED,
    "transformer_anyflow_far.AnyFlowCausalAttnProcessor.__call__": _REFUSED,
    "transformer_bria_fibo2.BriaFibo2AttnProcessor.__call__": _REFUSED,
    "transformer_ernie_image.ErnieImageSingleStreamAttnProcessor.__call__": _REFUSED,
    "transformer_joyimage_edit_plus.JoyImageEditPlusAttnProcessor.__call__": _REFUSED,
    "transformer_stable_audio3.StableAudio3SelfAttnProcessor.__call__": _REFUSED,
    "transformer_wan_animate_2.WanAnimate2AttnProcessor.__call__": _REFUSED,
    "autoencoder_same.SAMEAttnProcessor.__call__": "of an autoencoder",
    "condition_embedder_anima.AnimaTextConditionerAttnProcessor.__call__": (
        "of an embedder of conditions"
    ),
}
"""Methods that rotate pairs by the model's own function."""
