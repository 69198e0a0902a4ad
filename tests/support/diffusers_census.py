"""What of diffusers rotates: its rotary modules, how each is made small, what is left and why."""

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from rope_xp import RoPE, positions, scaling

_PACKAGES = ("transformers", "autoencoders", "condition_embedders", "controlnets")
_EMBEDDING = re.compile(r"\w*(Rotary|Rope|RoPE)\w*|\w*EmbedND\d?|\w+[a-z\d]PosEmbed")
_FUNCTION = re.compile(r"_?apply_\w*(rotary|rope)\w*|rope_apply")


def modules():
    yield importlib.import_module("diffusers.models.attention_processor")
    yield importlib.import_module("diffusers.models.embeddings")
    for name in _PACKAGES:
        package = importlib.import_module(f"diffusers.models.{name}")
        for entry in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{entry.name}")


def _list_classes():
    """Yield the classes of these modules, and the prefix that tells their names apart."""
    for module in modules():
        for value in list(vars(module).values()):
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield module.__name__.rpartition(".")[2], value


def embeddings():
    return {
        f"{prefix}.{kind.__name__}": kind
        for prefix, kind in _list_classes()
        if _EMBEDDING.fullmatch(kind.__name__)
    }


def methods():
    return {
        f"{prefix}.{member.__qualname__}": kind
        for prefix, kind in _list_classes()
        for member in list(vars(kind).values())
        if isinstance(member, FunctionType)
        and any(map(_FUNCTION.fullmatch, _names(member.__code__)))
        and not _FUNCTION.fullmatch(member.__name__)
    }


def _names(code):
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


class SmallModule(NamedTuple):
    fields: dict[str, Any]
    config: dict[str, Any]


def _make(fields, model, **config):
    """Return a row of a model, whose class ends in Transformer2DModel unless it has an end."""
    name = model if "Transformer" in model else f"{model}Transformer2DModel"
    return SmallModule(fields, {"_class_name": name, **config})


_AXES = (4, 6, 6)
_FOUR = (4, 4, 4, 4)
_3D = "Transformer3DModel"
_FLUX = {"axes_dims_rope": _AXES}
_WAN = {"attention_head_dim": 16, "patch_size": (1, 2, 2), "max_seq_len": 32}
_QWEN = {"theta": 10000, "axes_dim": list(_AXES), "scale_rope": True}
_LUMINA = {"theta": 10000, "axes_dim": _AXES, "axes_lens": (32, 32, 32), "patch_size": 2}
_COSMOS = {"hidden_size": 24, "max_size": (16, 32, 32), "rope_scale": (2.0, 1.0, 3.0)}
_COGVIEW = {"dim": 16, "patch_size": 2, "rope_axes_dim": (32, 16)}
_HUNYUAN = {"patch_size": 2, "patch_size_t": 1, "rope_dim": _AXES, "theta": 256.0}
_Z_IMAGE = _make(
    {"theta": 256.0, "axes_dims": _AXES, "axes_lens": (32, 32, 32)}, "ZImage", axes_dims=_AXES
)
_KANDINSKY = {"axes_dims": _AXES, "max_pos": (32, 32, 32)}
_FRAMEPACK = "HunyuanVideoFramepack"
_HEAD = {"attention_head_dim": 16}
_SECTIONS = {"mrope_section": (6, 3, 3)}


def _ids(model, base=10000.0):
    return _make({"theta": base, "axes_dim": _AXES}, model, **_FLUX, rope_theta=base)


def _wan(model, head_dim=16):
    size = {"attention_head_dim": head_dim}
    return _make(_WAN | size, model + _3D, **size)


def _hunyuan(model):
    return _make(_HUNYUAN, model + _3D, rope_axes_dim=_AXES, rope_theta=256.0)


def _kandinsky(model):
    return _make(_KANDINSKY, model + _3D, axes_dims=_AXES)


_TRANSFORMERS = {
    "flux.FluxPosEmbed": _ids("Flux"),
    "flux2.Flux2PosEmbed": _make({"theta": 2000, "axes_dim": _FOUR}, "Flux2", axes_dims_rope=_FOUR),
    "flux3.Flux3PosEmbed": _make({"theta": 10000, "axes_dim": _FOUR}, "Flux3",
        axes_dims_rope=_FOUR),
    "krea2.Krea2RotaryPosEmbed": _ids("Krea2", 1000.0),
    "bria.BriaEmbedND": _ids("Bria", 500.0),
    "bria.BriaPosEmbed": _ids("Bria"),
    "bria_fibo.BriaFiboEmbedND": _ids("BriaFibo"),
    "longcat_image.LongCatImagePosEmbed": _ids("LongCatImage"),
    "ovis_image.OvisImagePosEmbed": _ids("OvisImage"),
    "minimax_h3.MiniMaxH3RotaryPosEmbed": _make({"rope_freq_dim": 3}, "MiniMaxH3" + _3D,
        rope_freq_dim=3),
    "z_image.RopeEmbedder": _Z_IMAGE,
    "bria_fibo2.RopeEmbedder": _Z_IMAGE,
    "ideogram4.Ideogram4MRoPE": _make({"head_dim": 24, "base": 5e6, **_SECTIONS}, "Ideogram4",
        attention_head_dim=24, **_SECTIONS),
    "lumina2.Lumina2RotaryPosEmbed": _make(_LUMINA, "Lumina2", axes_dim_rope=_AXES),
    "hidream_image.HiDreamImageEmbedND": _ids("HiDreamImage"),
    "prx.PRXEmbedND": _make({"dim": 16, "theta": 10000, "axes_dim": [8, 8]}, "PRX",
        axes_dim=[8, 8]),
    "wan.WanRotaryPosEmbed": _wan("Wan"),
    "wan_animate.WanRotaryPosEmbed": _wan("WanAnimate"),
    "sana_video.WanRotaryPosEmbed": _wan("SanaVideo"),
    "skyreels_v2.SkyReelsV2RotaryPosEmbed": _wan("SkyReelsV2"),
    "chronoedit.ChronoEditRotaryPosEmbed": _wan("ChronoEdit", 24),
    "hunyuan_video.HunyuanVideoRotaryPosEmbed": _hunyuan("HunyuanVideo"),
    "hunyuan_video15.HunyuanVideo15RotaryPosEmbed": _hunyuan("HunyuanVideo15"),
    "hunyuan_video_framepack.HunyuanVideoFramepackRotaryPosEmbed": _hunyuan(_FRAMEPACK),
    "motif_video.MotifVideoRotaryPosEmbed": _hunyuan("MotifVideo"),
    "hunyuanimage.HunyuanImageRotaryPosEmbed": _make({"patch_size": (1, 2), "rope_dim": (6, 10)},
        "HunyuanImage", rope_axes_dim=(6, 10)),
    "helios.HeliosRotaryPosEmbed": _make({"rope_dim": _AXES, "theta": 10000.0}, "Helios" + _3D,
        rope_dim=_AXES),
    "cosmos.CosmosRotaryPosEmbed": _make(_COSMOS, "Cosmos" + _3D, attention_head_dim=24,
        rope_scale=(2.0, 1.0, 3.0)),
    "cogview4.CogView4RotaryPosEmbed": _make(_COGVIEW, "CogView4", **_HEAD, rope_axes_dim=(32, 16)),
    "glm_image.GlmImageRotaryPosEmbed": _make({"dim": 16, "patch_size": 2}, "GlmImage", **_HEAD),
    "easyanimate.EasyAnimateRotaryPosEmbed": _make({"patch_size": 2, "rope_dim": 16},
        "EasyAnimate" + _3D, **_HEAD),
    "qwenimage.QwenEmbedRope": _make(_QWEN, "QwenImage", **_FLUX),
    "qwenimage.QwenEmbedLayer3DRope": _make(_QWEN, "QwenImage", **_FLUX),
    "nucleusmoe_image.NucleusMoEEmbedRope": _make(_QWEN, "NucleusMoEImage", **_FLUX),
    "longcat_audio_dit.AudioDiTRotaryEmbedding": _make({"dim": 16, "base": 1e5},
        "LongCatAudioDiTTransformer", dit_dim=32, dit_heads=2),
    "minimax_music3.MiniMaxMusic3RotaryEmbedding": _make({"rotary_dim": 8},
        "MiniMaxMusic3Transformer1DModel", rotary_dim=8),
    "kandinsky.Kandinsky5RoPE1D": _make({"dim": 16}, "AceStepTransformer1DModel", head_dim=16,
        rope_theta=10000.0),
    "kandinsky.Kandinsky5RoPE3D": _kandinsky("Kandinsky5"),
    "kandinsky6.Kandinsky6RoPE3D": _kandinsky("Kandinsky6"),
    "kandinsky6_sr.Kandinsky6SRRoPE3D": _kandinsky("Kandinsky6SR"),
}  # fmt: skip
SMALL = {f"transformer_{name}": row for name, row in _TRANSFORMERS.items()}
SMALL["controlnet_z_image.RopeEmbedder"] = _Z_IMAGE
"""Rotary modules whose tables rope_xp makes, by their class."""

NO_PAIRS = {
    "embeddings.FluxPosEmbed": "a name that is deprecated, which makes one of transformer_flux",
    "transformer_ernie_image.ErnieImageEmbedND3": "gives the halves of a pair two angles",
    "transformer_mochi.MochiRoPE": "learned, a set of frequencies for each head",
}
"""Classes that are no rotary embedding with fixed frequencies."""

NO_ROTATION = "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding.forward"
"""A method that sorts angles, and rotates nothing."""

LEFT_METHODS = (
    "autoencoder_same.SAMEAttnProcessor",
    "condition_embedder_anima.AnimaTextConditionerAttnProcessor",
    # Of models that patch refuses.
    "attention_processor.MochiAttnProcessor2_0",
    "transformer_anyflow.AnyFlowAttnProcessor",
    *(f"transformer_anyflow_far.AnyFlow{kind}AttnProcessor" for kind in ("", "Causal")),
    "transformer_bria_fibo2.BriaFibo2AttnProcessor",
    "transformer_ernie_image.ErnieImageSingleStreamAttnProcessor",
    "transformer_joyimage_edit_plus.JoyImageEditPlusAttnProcessor",
    "transformer_stable_audio3.StableAudio3SelfAttnProcessor",
    "transformer_wan_animate_2.WanAnimate2AttnProcessor",
)
"""Classes whose ``__call__`` rotates pairs by the model's own function."""

# --- rotary modules that patching leaves, each with the RoPE that makes its tables -------------

_CPU = torch.device("cpu")
_TOKENS = 7
_LINE = np.arange(_TOKENS)
_ROWS = np.stack([_LINE, _LINE + 2, _LINE * 3])


class Hand(NamedTuple):
    fields: dict[str, Any]
    theirs: Callable[[Any], tuple[Any, Any]]
    rope: RoPE
    positions: Any
    bound: float = 1e-5  # of its own angles, which are float32


@dataclass(frozen=True)
class FrequencyList(scaling.Scaling):
    series: tuple[float, ...]

    def frequencies(self, base, rotary_dim):
        return np.array(self.series)


def _angles(module):
    angles = module(_TOKENS, _CPU)[:, :4]
    return angles.cos(), angles.sin()


def _pick(index, *arguments):
    return lambda module: tuple(table[index] for table in module(*arguments))


def _all_axes(table):
    return table[:_TOKENS].real, table[:_TOKENS].imag


def _ltx_rope(steps):
    """Return frequencies that rise, dealt out to three axes, behind a pair that never turns."""
    rising = [10000.0 ** (j / (steps - 1)) * math.pi / 2 for j in range(steps)]
    series = (0.0, *(f for f in rising for _ in range(3)))
    return RoPE(position_axes=(0, *((0, 1, 2) * steps)), scaling=FrequencyList(series))


_COORDINATES = torch.tensor([[3.0, 7.5, 12.0], [64.0, 512.0, 1800.0], [100.0, 3.0, 2000.0]])[None]
_FRACTIONS = 2 * _COORDINATES[0].double().numpy() / [[20.0], [2048.0], [2048.0]] - 1


def _hand_ltx(compute):
    """Angles reach 15,708 in float32, which is all that the modules know."""
    return Hand(
        {"dim": 20},
        lambda m: tuple(table[0, :, ::2] for table in compute(m)),
        _ltx_rope(3),
        _FRACTIONS,
        5e-3,
    )


def _mask_of_image(module):
    # Two tokens of text, an image of 2 x 3, and one more of text.
    mask = torch.tensor([False] * 2 + [True] * 6 + [False])
    table = module([(1, 2, 3)], mask, _CPU)
    return table.real, table.imag


def _around_an_image():
    image = positions.video(1, 2, 3, start=(2, 0, 0), centre=True)
    return np.concatenate([positions.text(2, 3), image, positions.text(1, 3, start=5)], axis=1)


def _of_decoder(module):
    """Return the tables by which it rotates x: what it makes of ones and zeros."""
    x = torch.zeros(1, 2, 3, 2, 1, 16)
    x[..., ::2] = 1.0
    y = module(x).reshape(12, 16)
    return y[:, ::2], y[:, 1::2]


_DEALT = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0)
_SHORT, _LONG = [1.0, 1.5, 2.0, 2.5], [2.0, 3.0, 4.0, 5.0]
_AT_LINE = (torch.zeros(1), torch.arange(_TOKENS)[None])
_THIRDS = RoPE.axial((8, 4, 4))

BY_HAND = {
    "transformer_stable_audio3.StableAudio3RotaryEmbedding": Hand({"dim": 8}, _angles, RoPE(),
        _LINE),
    "autoencoder_same.RotaryEmbedding": Hand({"dim": 8}, _angles, RoPE(), _LINE),
    "condition_embedder_anima.AnimaRotaryEmbedding": Hand({"head_dim": 8},
        _pick(np.s_[0, :, :4], *_AT_LINE), RoPE(), _LINE),
    "autoencoder_kl_minimax_h3.MiniMaxH3VideoRotaryPosEmbed": Hand({"dim": 12},
        _pick(np.s_[0, :, 0, :6], torch.tensor([[[-1.0, 0.25, 0.5], [0.0, -0.75, 1.0]]])),
        RoPE.axial((4, 4, 4), base=100.0),
        2 * np.pi * np.array([[-1.0, 0.0], [0.25, -0.75], [0.5, 1.0]])),
    "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding": Hand(
        {"head_dim": 24, "rope_theta": 5e6, "rope_axes_dim": (6, 3, 3)},
        _pick(np.s_[0, :, :12], torch.from_numpy(_ROWS)[:, None], _CPU, torch.float32),
        RoPE(base=5e6, position_axes=_DEALT),
        _ROWS,
    ),
    "transformer_omnigen.OmniGenSuScaledRotaryEmbedding": Hand(
        {"dim": 8, "rope_scaling": {"short_factor": _SHORT, "long_factor": _LONG}},
        _pick(np.s_[:, :4], *_AT_LINE),
        RoPE(scaling=scaling.LongRoPE(_SHORT, _LONG, 4096, factor=32.0).for_length(_TOKENS)),
        _LINE,
    ),
    "transformer_qwenimage21.QwenImage21Rope": Hand({"theta": 10000, "axes_dim": [4, 6, 6]},
        _mask_of_image, RoPE.axial((4, 6, 6)), _around_an_image()),
    "transformer_anyflow.AnyFlowRotaryPosEmbed": Hand(_WAN,
        lambda m: _all_axes(m._build_freqs(_CPU)), _THIRDS, [_LINE] * 3),
    "transformer_anyflow_far.AnyFlowCausalRotaryPosEmbed": Hand(
        {**_WAN, "compressed_patch_size": (1, 4, 4)},
        lambda m: _all_axes(m._build_freqs(_CPU)),
        _THIRDS,
        [_LINE] * 3,
    ),
    "transformer_sana_wm.SanaWMRotaryPosEmbed": Hand(_WAN, lambda m: _all_axes(m.freqs), _THIRDS,
        [_LINE] * 3),
    "transformer_kandinsky6.Kandinsky6RoPE1D": Hand({"dim": 8, "freqs_scaling": 0.5},
        lambda m: (m.angles[:_TOKENS].cos(), m.angles[:_TOKENS].sin()),
        RoPE(scaling=scaling.Linear(2.0)), _LINE),
    "ltx2_diffusion_decoder.LTX2VideoVaeRotaryPosEmbed3D": Hand({"head_dim": 16}, _of_decoder,
        RoPE.axial((4, 6, 6)), positions.video(2, 3, 2)),
    "transformer_ltx.LTXVideoRotaryPosEmbed": _hand_ltx(
        lambda m: m(torch.zeros(1, 3, 20), video_coords=_COORDINATES)
    ),
    "transformer_ltx2.LTX2AudioVideoRotaryPosEmbed": _hand_ltx(lambda m: m(_COORDINATES)),
    "transformer_sana_wm_refiner.SanaWMLTX2AudioVideoRotaryPosEmbed": _hand_ltx(
        lambda m: m(_COORDINATES)
    ),
}  # fmt: skip
