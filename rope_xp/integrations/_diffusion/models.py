"""The rotary embeddings of diffusers' transformers: a row for each class.

diffusers keeps layouts, sections, positions and most bases in code. The rows hold them, and name
the keys of a configuration that override them, with the defaults of the class.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rope_xp._core.typing import Layout
from rope_xp.integrations._diffusion import grids
from rope_xp.integrations._diffusion.grids import Config, Lines, Text

Numbers = Callable[[Config], tuple[int, ...]]


@dataclass(frozen=True)
class ModelRow:
    """The rotary embedding of a class."""

    lines: Lines
    sections: Numbers
    """How many components of a head each component of a position rotates."""
    base: float = 10000.0
    base_key: str = ""
    """The key of a configuration that holds another base; empty where the class has none."""
    text: Text | None = None
    """None where the model does not rotate its text."""
    layout: Layout = "interleaved"
    bases: Callable[[Config, tuple[int, ...]], tuple[float, ...]] | None = None
    """A base for each axis."""
    position_axes: Numbers | None = None
    """For axes that share one series of frequencies, as in M-RoPE."""


# --- sections ------------------------------------------------------------------------------------


def _key(name: str, *default: int) -> Numbers:
    return lambda config: tuple(config.get(name, default))


def _number(name: str, default: int, divisor: int = 1) -> Numbers:
    return lambda config: (config.get(name, default) // divisor,)


def _per_head(width: tuple[str, int], heads: tuple[str, int], divisor: int = 1) -> Numbers:
    return lambda config: (config.get(*width) // config.get(*heads) // divisor,)


def _thirds(default: int) -> Numbers:
    """Rows and columns have a third each, in whole pairs; frames have the rest."""

    def sections(config: Config) -> tuple[int, ...]:
        head_dim = config.get("attention_head_dim", default)
        third = 2 * (head_dim // 6)
        return head_dim - 2 * third, third, third

    return sections


def _eighths(config: Config) -> tuple[int, ...]:
    """Frames have two eighths, rows and columns three each."""
    head_dim = config.get("attention_head_dim", 64)
    return head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3


def _halves(config: Config) -> tuple[int, ...]:
    return (config.get("attention_head_dim", 40) // 2,) * 2


def _prx(config: Config) -> tuple[int, ...]:
    if config.get("axes_dim") is not None:
        return tuple(config["axes_dim"])
    return (config.get("hidden_size", 1792) // config.get("num_heads", 28) // 2,) * 2


def _minimax(config: Config) -> tuple[int, ...]:
    return (2 * config.get("rope_freq_dim", 16),) * 3


def _ntk_bases(config: Config, sections: tuple[int, ...]) -> tuple[float, ...]:
    """NTK-aware interpolation with a factor for each axis, as :class:`rope_xp.scaling.NTK`."""
    scales = config.get("rope_scale", (2.0, 1.0, 1.0))
    return tuple(10000.0 * s ** (n / (n - 2)) for s, n in zip(scales, sections, strict=True))


def _strided_axes(config: Config) -> tuple[int, ...]:
    """Every third pair reads the row, every third the column, as in M-RoPE; the rest the frame."""
    counts = config.get("mrope_section", (24, 20, 20))
    axes = [0] * (config.get("attention_head_dim", 256) // 2)
    for axis in (1, 2):
        for pair in range(axis, 3 * counts[axis], 3):
            axes[pair] = axis
    return tuple(axes)


# --- classes -------------------------------------------------------------------------------------

_FLUX = _key("axes_dims_rope", 16, 56, 56)
_FLUX2 = _key("axes_dims_rope", 32, 32, 32, 32)
_KREA = _key("axes_dims_rope", 32, 48, 48)
_HIDREAM = _key("axes_dims_rope", 64, 32, 32)
_HUNYUAN = _key("rope_axes_dim", 16, 56, 56)
_JOYIMAGE = _key("rope_dim_list", 16, 56, 56)
_THETA = "rope_theta"

_AT_ZERO = Text(along=())
_DIAGONAL = Text(along=(1, 2))
_CONTINUED = Text(along=None, start=grids.half_size)
_LAST = Text(along=None, start=grids.full_size, first=False)

_flux = ModelRow(grids.video, _FLUX, text=_AT_ZERO)
_bria = ModelRow(grids.video, _FLUX, base_key=_THETA, text=_AT_ZERO)
_qwen = ModelRow(grids.qwen, _FLUX, text=_CONTINUED)
_wan = ModelRow(grids.video, _thirds(128))
_hunyuan = ModelRow(grids.video, _HUNYUAN, 256.0, _THETA)
_joyimage = ModelRow(grids.video, _JOYIMAGE, 256.0, "theta", _LAST)
_cogvideox = ModelRow(grids.cogvideox, _eighths)
_kandinsky = ModelRow(grids.video, _key("axes_dims", 16, 24, 24))

MODELS: dict[str, ModelRow] = {
    "FluxTransformer2DModel": _flux,
    "ChromaTransformer2DModel": _flux,
    "BriaTransformer2DModel": _bria,
    "BriaFiboTransformer2DModel": _bria,
    "OvisImageTransformer2DModel": ModelRow(grids.video, _FLUX, text=_DIAGONAL),
    "LongCatImageTransformer2DModel": ModelRow(grids.longcat, _FLUX, text=_DIAGONAL),
    "Krea2Transformer2DModel": ModelRow(grids.video, _KREA, 1000.0, _THETA, _AT_ZERO),
    "Flux2Transformer2DModel": ModelRow(grids.flux2, _FLUX2, 2000.0, _THETA, Text(along=(3,))),
    "Flux3Transformer2DModel": ModelRow(grids.flux2, _FLUX2, 10000.0, _THETA, Text(along=(3,))),
    "QwenImageTransformer2DModel": _qwen,
    "NucleusMoEImageTransformer2DModel": _qwen,
    "WanTransformer3DModel": _wan,
    "WanVACETransformer3DModel": _wan,
    "WanAnimateTransformer3DModel": _wan,
    "SkyReelsV2Transformer3DModel": _wan,
    "AnyFlowTransformer3DModel": _wan,
    "AnyFlowFARTransformer3DModel": _wan,
    "SanaVideoTransformer3DModel": ModelRow(grids.video, _thirds(112)),
    "ChronoEditTransformer3DModel": ModelRow(grids.chronoedit, _thirds(128)),
    "HeliosTransformer3DModel": ModelRow(grids.video, _key("rope_dim", 44, 42, 42), 1e4, _THETA),
    "HunyuanVideoTransformer3DModel": _hunyuan,
    "HunyuanVideo15Transformer3DModel": _hunyuan,
    "HunyuanVideoFramepackTransformer3DModel": _hunyuan,
    "MotifVideoTransformer3DModel": _hunyuan,
    "HunyuanImageTransformer2DModel": ModelRow(
        grids.hunyuan_image, _key("rope_axes_dim", 64, 64), 256.0, _THETA
    ),
    "JoyImageEditTransformer3DModel": _joyimage,
    "JoyImageEditPlusTransformer3DModel": _joyimage,
    "CogVideoXTransformer3DModel": _cogvideox,
    "ConsisIDTransformer3DModel": _cogvideox,
    "EasyAnimateTransformer3DModel": ModelRow(grids.easyanimate, _eighths),
    "ZImageTransformer2DModel": ModelRow(
        grids.z_image,
        _key("axes_dims", 32, 48, 48),
        256.0,
        _THETA,
        Text(along=(0,), start=(1, 0, 0), first=False),
    ),
    "Lumina2Transformer2DModel": ModelRow(
        grids.lumina2, _key("axes_dim_rope", 32, 32, 32), text=Text(along=(0,))
    ),
    "HiDreamImageTransformer2DModel": ModelRow(
        grids.video, _HIDREAM, text=Text(along=(), first=False)
    ),
    "Kandinsky5Transformer3DModel": _kandinsky,
    "Kandinsky6SRTransformer3DModel": _kandinsky,
    "Kandinsky6Transformer3DModel": ModelRow(grids.video, _key("axes_dims", 32, 48, 48)),
    "CosmosTransformer3DModel": ModelRow(
        grids.cosmos, _thirds(128), layout="half", bases=_ntk_bases
    ),
    "CogView4Transformer2DModel": ModelRow(grids.cogview4, _halves, layout="half"),
    "GlmImageTransformer2DModel": ModelRow(grids.image, _halves, layout="half"),
    "PRXTransformer2DModel": ModelRow(grids.image, _prx, base_key="theta"),
    "MiniMaxH3Transformer3DModel": ModelRow(grids.video, _minimax, base_key=_THETA, layout="half"),
    "Ideogram4Transformer2DModel": ModelRow(
        grids.video,
        _number("attention_head_dim", 256),
        5e6,
        _THETA,
        layout="half",
        position_axes=_strided_axes,
    ),
    "MiniMaxMusic3Transformer1DModel": ModelRow(
        grids.sound, _number("rotary_dim", 32), layout="half"
    ),
    "AceStepTransformer1DModel": ModelRow(
        grids.sound, _number("head_dim", 128), 1e6, _THETA, layout="half"
    ),
    "LongCatAudioDiTTransformer": ModelRow(
        grids.sound, _per_head(("dit_dim", 1536), ("dit_heads", 24)), 1e5, layout="half"
    ),
    "StableAudio3DiTModel": ModelRow(
        grids.sound, _per_head(("embed_dim", 1536), ("num_heads", 24), 2), layout="half"
    ),
    "StableAudioDiTModel": ModelRow(
        grids.sound, _number("attention_head_dim", 64, 2), layout="half"
    ),
}

_LTX = "its frequencies are base ** linspace(0, 1) * pi/2 over all heads at once"
OWN_TABLES: dict[str, str] = {
    "LTXVideoTransformer3DModel": _LTX,
    "LTX2VideoTransformer3DModel": _LTX,
    "SanaWMLTX2RefinerTransformer3DModel": _LTX,
    "SanaWMTransformer3DModel": "its sections are split at other places than they are made",
    "AllegroTransformer3DModel": (
        "it rotates three thirds of a head, each by halves; use a RoPE for each, by rotary_offset"
    ),
}
"""Models without a RoPE, and why. Patched, they rotate by rope_xp with the tables they make."""

UNSUPPORTED: dict[str, str] = {
    **OWN_TABLES,
    "ErnieImageTransformer2DModel": (
        "it does not rotate: the two components of a pair turn by different angles"
    ),
    "MochiTransformer3DModel": "its frequencies are learned, a set for each head",
    "QwenImage21Transformer2DModel": "a mask interleaves its text and images",
    "Cosmos3OmniTransformer": "only its pipeline makes its positions",
    "BriaFibo2Transformer2DModel": "its perceiver gathers its tokens",
    "WanAnimate2Transformer3DModel": "each call gives its grids offsets and strides",
    "OmniGenTransformer2DModel": "it has LongRoPE; make a RoPE with that rule of rope_scaling",
}
"""Models without a RoPE and positions, and why."""
