"""The rotary embeddings of diffusers' transformers: a row for each class.

diffusers keeps layouts, sections, positions and most bases in code. The rows hold them, and name
the keys of a configuration that override them, with the defaults of the class.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rope_xp._core.typing import Layout
from rope_xp.integrations._diffusion import grids
from rope_xp.integrations._diffusion.grids import Config, Grid, Lines, Text, image, video

Numbers = Callable[[Config], tuple[int, ...]]


class ModelRow(NamedTuple):
    sections: Numbers  # how many components of a head each component of a position rotates
    base: float = 10000.0
    base_key: str = ""  # the key of a configuration that holds another base
    text: Text | None = None  # None where the model does not rotate its text
    layout: Layout = "interleaved"
    lines: Lines = video
    bases: Callable[[Config, tuple[int, ...]], tuple[float, ...]] | None = None  # for each axis
    position_axes: Numbers | None = None  # of axes that share one series, as in M-RoPE


def _read(key: str, default: Any, divide: Callable[[Any], tuple[int, ...]] = tuple) -> Numbers:
    return lambda config: divide(config.get(key, default))


def _per_head(width: tuple[str, int], heads: tuple[str, int], divisor: int = 1) -> Numbers:
    return lambda config: (config.get(*width) // config.get(*heads) // divisor,)


def _thirds(head_dim: int) -> tuple[int, ...]:
    """Rows and columns have a third each, in whole pairs; frames have the rest."""
    third = 2 * (head_dim // 6)
    return head_dim - 2 * third, third, third


def _prx(config: Config) -> tuple[int, ...]:
    if config.get("axes_dim") is not None:
        return tuple(config["axes_dim"])
    return (config.get("hidden_size", 1792) // config.get("num_heads", 28) // 2,) * 2


def _ntk_bases(config: Config, sections: tuple[int, ...]) -> tuple[float, ...]:
    """NTK-aware interpolation with a factor for each axis, as :class:`rope_xp.scaling.NTK`."""
    scales = config.get("rope_scale", (2.0, 1.0, 1.0))
    return tuple(10000.0 * s ** (n / (n - 2)) for s, n in zip(scales, sections, strict=True))


def _strided_axes(config: Config) -> tuple[int, ...]:
    """Every third pair reads the row, every third the column, as in M-RoPE; the rest the frame."""
    counts = config.get("mrope_section", (24, 20, 20))
    pairs = range(config.get("attention_head_dim", 256) // 2)
    return tuple(i % 3 if i < 3 * counts[i % 3] else 0 for i in pairs)


def _four_axes(grid: Grid, config: Config) -> list[Any]:
    return [*video(grid, config), grid.arange(1)]  # the last axis counts text


def _lumina(start: int) -> Lines:
    """Frames follow the text, which has one frame per token."""
    return lambda grid, config: video(grid, config, (start + grid.text, 0, 0))


def _hunyuan_image(grid: Grid, config: Config) -> list[Any]:
    has_frames = len(config.get("rope_axes_dim", (64, 64))) == 3
    return (video if has_frames else image)(grid, config)


def _chronoedit(grid: Grid, config: Config) -> list[Any]:
    """Two frames are the first and the last of a longer video."""
    skipped = config.get("rope_temporal_skip_len", 8) - 1
    return video(grid, config, step=skipped if grid.frames == 2 else 1)


def _cosmos(grid: Grid, config: Config) -> list[Any]:
    """Frames are in units of 1/24 s."""
    return video(grid, config, step=1 if grid.fps is None else 24 / grid.fps)


_HEAD, _THETA = "attention_head_dim", "rope_theta"
_FLUX = _read("axes_dims_rope", (16, 56, 56))
_FLUX2 = _read("axes_dims_rope", (32, 32, 32, 32))
_KREA = _read("axes_dims_rope", (32, 48, 48))
_HIDREAM = _read("axes_dims_rope", (64, 32, 32))
_Z_IMAGE = _read("axes_dims", (32, 48, 48))
_HUNYUAN = _read("rope_axes_dim", (64, 64))
_LUMINA = _read("axes_dim_rope", (32, 32, 32))
_HALVES = _read(_HEAD, 40, lambda n: (n // 2, n // 2))
_EIGHTHS = _read(_HEAD, 64, lambda n: (n // 4, n // 8 * 3, n // 8 * 3))
_MINIMAX = _read("rope_freq_dim", 16, lambda n: (2 * n,) * 3)

_AT_ZERO = Text(along=())
_FRAMES_BEHIND = Text(along=(0,), start=(1, 0, 0), first=False)
_DIAGONAL = Text(along=(1, 2))
_FOURTH = Text(along=(3,))
_BEHIND = Text(along=None, start=lambda grid: max(grid[:3]), first=False)

_sound = functools.partial(ModelRow, layout="half", lines=grids.sound)

_ROWS: dict[str, ModelRow] = {
    "FluxTransformer2DModel ChromaTransformer2DModel": ModelRow(_FLUX, text=_AT_ZERO),
    "BriaTransformer2DModel BriaFiboTransformer2DModel": ModelRow(
        _FLUX, base_key=_THETA, text=_AT_ZERO
    ),
    "OvisImageTransformer2DModel": ModelRow(_FLUX, text=_DIAGONAL),
    "LongCatImageTransformer2DModel": ModelRow(
        _FLUX,
        text=_DIAGONAL,
        lines=lambda grid, config: video(grid, config, (1, 512, 512)),  # behind 512 tokens of text
    ),
    "Krea2Transformer2DModel": ModelRow(_KREA, 1000.0, _THETA, _AT_ZERO),
    "Flux2Transformer2DModel": ModelRow(_FLUX2, 2000.0, _THETA, _FOURTH, lines=_four_axes),
    "Flux3Transformer2DModel": ModelRow(_FLUX2, 10000.0, _THETA, _FOURTH, lines=_four_axes),
    "QwenImageTransformer2DModel NucleusMoEImageTransformer2DModel": ModelRow(
        _FLUX,
        text=Text(along=None, start=grids.half_size),
        lines=lambda grid, config: video(grid, config, (0, -grid.height // 2, -grid.width // 2)),
    ),
    """
        WanTransformer3DModel WanVACETransformer3DModel WanAnimateTransformer3DModel
        SkyReelsV2Transformer3DModel AnyFlowTransformer3DModel AnyFlowFARTransformer3DModel
    """: ModelRow(_read(_HEAD, 128, _thirds)),
    "SanaVideoTransformer3DModel": ModelRow(_read(_HEAD, 112, _thirds)),
    "ChronoEditTransformer3DModel": ModelRow(_read(_HEAD, 128, _thirds), lines=_chronoedit),
    "HeliosTransformer3DModel": ModelRow(_read("rope_dim", (44, 42, 42)), base_key=_THETA),
    """
        HunyuanVideoTransformer3DModel HunyuanVideo15Transformer3DModel
        HunyuanVideoFramepackTransformer3DModel MotifVideoTransformer3DModel
    """: ModelRow(_read("rope_axes_dim", (16, 56, 56)), 256.0, _THETA),
    "HunyuanImageTransformer2DModel": ModelRow(_HUNYUAN, 256.0, _THETA, lines=_hunyuan_image),
    "JoyImageEditTransformer3DModel JoyImageEditPlusTransformer3DModel": ModelRow(
        _read("rope_dim_list", (16, 56, 56)), 256.0, "theta", _BEHIND
    ),
    "CogVideoXTransformer3DModel ConsisIDTransformer3DModel": ModelRow(
        _EIGHTHS, lines=grids.cogvideox
    ),
    "EasyAnimateTransformer3DModel": ModelRow(_EIGHTHS, lines=grids.easyanimate),
    "ZImageTransformer2DModel": ModelRow(_Z_IMAGE, 256.0, _THETA, _FRAMES_BEHIND, lines=_lumina(1)),
    "Lumina2Transformer2DModel": ModelRow(_LUMINA, text=Text(along=(0,)), lines=_lumina(0)),
    "HiDreamImageTransformer2DModel": ModelRow(_HIDREAM, text=Text(along=(), first=False)),
    "Kandinsky5Transformer3DModel Kandinsky6SRTransformer3DModel": ModelRow(
        _read("axes_dims", (16, 24, 24))
    ),
    "Kandinsky6Transformer3DModel": ModelRow(_read("axes_dims", (32, 48, 48))),
    "CosmosTransformer3DModel": ModelRow(
        _read(_HEAD, 128, _thirds), layout="half", lines=_cosmos, bases=_ntk_bases
    ),
    "CogView4Transformer2DModel": ModelRow(_HALVES, layout="half", lines=grids.cogview4),
    "GlmImageTransformer2DModel": ModelRow(_HALVES, layout="half", lines=image),
    "PRXTransformer2DModel": ModelRow(_prx, base_key="theta", lines=image),
    "MiniMaxH3Transformer3DModel": ModelRow(_MINIMAX, base_key=_THETA, layout="half"),
    "Ideogram4Transformer2DModel": ModelRow(
        _read(_HEAD, 256, lambda n: (n,)), 5e6, _THETA, layout="half", position_axes=_strided_axes
    ),
    "MiniMaxMusic3Transformer1DModel": _sound(_read("rotary_dim", 32, lambda n: (n,))),
    "AceStepTransformer1DModel": _sound(_read("head_dim", 128, lambda n: (n,)), 1e6, _THETA),
    "LongCatAudioDiTTransformer": _sound(_per_head(("dit_dim", 1536), ("dit_heads", 24)), 1e5),
    "StableAudio3DiTModel": _sound(_per_head(("embed_dim", 1536), ("num_heads", 24), 2)),
    "StableAudioDiTModel": _sound(_read(_HEAD, 64, lambda n: (n // 2,))),
}
MODELS = {name: row for names, row in _ROWS.items() for name in names.split()}

_LTX = "its frequencies are base ** linspace(0, 1) * pi/2 over all heads at once"
OWN_TABLES: dict[str, str] = {
    "LTXVideoTransformer3DModel": _LTX,
    "LTX2VideoTransformer3DModel": _LTX,
    "SanaWMLTX2RefinerTransformer3DModel": _LTX,
    "SanaWMTransformer3DModel": "its sections are split at other places than they are made",
    "AllegroTransformer3DModel": (
        "it rotates three thirds of a head, each by halves; use a RoPE for each (rotary_offset)"
    ),
}
"""Models without a RoPE, and why. Patched, they rotate by rope_xp with the tables they make."""

UNSUPPORTED: dict[str, str] = {
    **OWN_TABLES,
    "ErnieImageTransformer2DModel": "the components of its pairs turn by different angles",
    "MochiTransformer3DModel": "its frequencies are learned, a set for each head",
    "QwenImage21Transformer2DModel": "a mask interleaves its text and images",
    "Cosmos3OmniTransformer": "only its pipeline makes its positions",
    "BriaFibo2Transformer2DModel": "its perceiver gathers its tokens",
    "WanAnimate2Transformer3DModel": "each call gives its grids offsets and strides",
    "OmniGenTransformer2DModel": "it has LongRoPE; build a RoPE from its rope_scaling",
}
"""Models without a RoPE and positions, and why."""
