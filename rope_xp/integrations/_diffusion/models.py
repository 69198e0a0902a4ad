"""The rotary embedding of each transformer of diffusers: one table, a row a class.

What a row does not say is in the configuration. diffusers keeps layouts, sections, places of text
and most bases in code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rope_xp._contract.typing import Layout
from rope_xp.integrations._diffusion import places, sections
from rope_xp.integrations._diffusion.places import Place

Config = Mapping[str, Any]


_AXES_DIMS = sections.key("axes_dims_rope")


@dataclass(frozen=True)
class Model:
    """What the code of a class fixes."""

    place: Place
    sections: Callable[[Config], tuple[int, ...]] = _AXES_DIMS
    """How many components of a head each component of a position has."""
    base: float = 10000.0
    base_key: str = ""
    """The key of the configuration that says another base; empty where there is none."""
    layout: Layout = "interleaved"
    defaults: Config = field(default_factory=dict)
    """Values of keys that a configuration may leave out."""
    bases: Callable[[Config, tuple[int, ...]], tuple[float, ...]] | None = None
    """A base for each axis."""
    order: Callable[[Config], tuple[int, ...]] | None = None
    """``position_axes`` of models that deal one series out to the axes, as M-RoPE does."""


_FLUX = {"axes_dims_rope": (16, 56, 56)}
_WAN = {"attention_head_dim": 128}
_HUNYUAN = {"rope_axes_dim": (16, 56, 56), "rope_theta": 256.0}
_CROPPED = {"attention_head_dim": 64, "patch_size": 2, "sample_height": 60, "sample_width": 90}
_THETA = "rope_theta"

ROWS: tuple[tuple[str, Model], ...] = (
    ("FluxTransformer2DModel ChromaTransformer2DModel", Model(places.flux, defaults=_FLUX)),
    (
        "BriaTransformer2DModel BriaFiboTransformer2DModel",
        Model(places.flux, base_key=_THETA, defaults=_FLUX),
    ),
    ("OvisImageTransformer2DModel", Model(places.ovis, defaults=_FLUX)),
    ("LongCatImageTransformer2DModel", Model(places.longcat, defaults=_FLUX)),
    (
        "Krea2Transformer2DModel",
        Model(places.flux, base=1000.0, base_key=_THETA, defaults={"axes_dims_rope": (32, 48, 48)}),
    ),
    (
        "Flux2Transformer2DModel",
        Model(places.flux2, base=2000.0, base_key=_THETA, defaults={"axes_dims_rope": (32,) * 4}),
    ),
    (
        "Flux3Transformer2DModel",
        Model(places.flux2, base_key=_THETA, defaults={"axes_dims_rope": (32,) * 4}),
    ),
    (
        "QwenImageTransformer2DModel NucleusMoEImageTransformer2DModel",
        Model(places.qwen, defaults=_FLUX),
    ),
    (
        """
        WanTransformer3DModel WanVACETransformer3DModel WanAnimateTransformer3DModel
        SkyReelsV2Transformer3DModel AnyFlowTransformer3DModel AnyFlowFARTransformer3DModel
        """,
        Model(places.video, sections.thirds, defaults=_WAN),
    ),
    (
        "SanaVideoTransformer3DModel",
        Model(places.video, sections.thirds, defaults={"attention_head_dim": 112}),
    ),
    (
        "ChronoEditTransformer3DModel",
        Model(places.chronoedit, sections.thirds, defaults={**_WAN, "rope_temporal_skip_len": 8}),
    ),
    (
        "HeliosTransformer3DModel",
        Model(
            places.video,
            sections.key("rope_dim"),
            base_key=_THETA,
            defaults={"rope_dim": (44, 42, 42)},
        ),
    ),
    (
        """
        HunyuanVideoTransformer3DModel HunyuanVideo15Transformer3DModel
        HunyuanVideoFramepackTransformer3DModel MotifVideoTransformer3DModel
        """,
        Model(
            places.video, sections.key("rope_axes_dim"), 256.0, base_key=_THETA, defaults=_HUNYUAN
        ),
    ),
    (
        "HunyuanImageTransformer2DModel",
        Model(
            places.either,
            sections.key("rope_axes_dim"),
            256.0,
            base_key=_THETA,
            defaults={"rope_axes_dim": (64, 64)},
        ),
    ),
    (
        "JoyImageEditTransformer3DModel JoyImageEditPlusTransformer3DModel",
        Model(
            places.joyimage,
            sections.key("rope_dim_list"),
            256.0,
            base_key="theta",
            defaults={"rope_dim_list": (16, 56, 56)},
        ),
    ),
    (
        "CogVideoXTransformer3DModel ConsisIDTransformer3DModel",
        Model(places.cogvideox, sections.eighths, defaults=_CROPPED),
    ),
    (
        "EasyAnimateTransformer3DModel",
        Model(places.easyanimate, sections.eighths, defaults=_CROPPED),
    ),
    (
        "ZImageTransformer2DModel",
        Model(
            places.z_image,
            sections.key("axes_dims"),
            256.0,
            base_key=_THETA,
            defaults={"axes_dims": (32, 48, 48)},
        ),
    ),
    (
        "Lumina2Transformer2DModel",
        Model(
            places.lumina2,
            sections.key("axes_dim_rope"),
            defaults={"axes_dim_rope": (32, 32, 32)},
        ),
    ),
    (
        "HiDreamImageTransformer2DModel",
        Model(places.hidream, defaults={"axes_dims_rope": (64, 32, 32)}),
    ),
    (
        "Kandinsky5Transformer3DModel Kandinsky6SRTransformer3DModel",
        Model(places.video, sections.key("axes_dims"), defaults={"axes_dims": (16, 24, 24)}),
    ),
    (
        "Kandinsky6Transformer3DModel",
        Model(places.video, sections.key("axes_dims"), defaults={"axes_dims": (32, 48, 48)}),
    ),
    (
        "CosmosTransformer3DModel",
        Model(
            places.cosmos,
            sections.thirds,
            layout="half",
            bases=sections.ntk,
            defaults={**_WAN, "rope_scale": (2.0, 1.0, 1.0)},
        ),
    ),
    (
        "CogView4Transformer2DModel",
        Model(
            places.cogview4,
            sections.halves,
            layout="half",
            defaults={"attention_head_dim": 40, "rope_axes_dim": (256, 256)},
        ),
    ),
    (
        "GlmImageTransformer2DModel",
        Model(places.picture, sections.halves, layout="half", defaults={"attention_head_dim": 40}),
    ),
    (
        "PRXTransformer2DModel",
        Model(places.picture, sections.prx, base_key="theta", defaults=sections.PRX),
    ),
    (
        "MiniMaxH3Transformer3DModel",
        Model(
            places.video,
            sections.of_each,
            layout="half",
            base_key=_THETA,
            defaults={"rope_freq_dim": 16},
        ),
    ),
    (
        "Ideogram4Transformer2DModel",
        Model(
            places.video,
            sections.whole("attention_head_dim"),
            5e6,
            base_key=_THETA,
            layout="half",
            order=sections.strided("mrope_section"),
            defaults={"attention_head_dim": 256, "mrope_section": (24, 20, 20)},
        ),
    ),
    (
        "MiniMaxMusic3Transformer1DModel",
        Model(
            places.line,
            sections.whole("rotary_dim"),
            layout="half",
            defaults={"rotary_dim": 32},
        ),
    ),
    (
        "AceStepTransformer1DModel",
        Model(
            places.line,
            sections.whole("head_dim"),
            1e6,
            base_key=_THETA,
            layout="half",
            defaults={"head_dim": 128},
        ),
    ),
    (
        "LongCatAudioDiTTransformer",
        Model(
            places.line,
            sections.quotient("dit_dim", "dit_heads"),
            1e5,
            layout="half",
            defaults={"dit_dim": 1536, "dit_heads": 24},
        ),
    ),
    (
        "StableAudio3DiTModel",
        Model(
            places.line,
            sections.quotient("embed_dim", "num_heads", 2),
            layout="half",
            defaults={"embed_dim": 1536, "num_heads": 24},
        ),
    ),
    (
        "StableAudioDiTModel",
        Model(
            places.line,
            sections.quotient("attention_head_dim", 2),
            layout="half",
            defaults={"attention_head_dim": 64},
        ),
    ),
)

MODELS: dict[str, Model] = {name: model for names, model in ROWS for name in names.split()}

OWN_TABLES = frozenset(
    (
        "LTXVideoTransformer3DModel",
        "LTX2VideoTransformer3DModel",
        "SanaWMLTX2RefinerTransformer3DModel",
        "SanaWMTransformer3DModel",
        "AllegroTransformer3DModel",
    )
)
"""Models whose tables stay their own when they are patched; their functions rotate pairs."""
_LTX = "its frequencies are base ** linspace(0, 1) * pi/2 over all heads at once"
UNSUPPORTED: dict[str, str] = {
    "ErnieImageTransformer2DModel": (
        "it does not rotate: the two components of a pair turn by different angles"
    ),
    "MochiTransformer3DModel": "its frequencies are learned, a set for each head",
    "LTXVideoTransformer3DModel": _LTX,
    "LTX2VideoTransformer3DModel": _LTX,
    "SanaWMLTX2RefinerTransformer3DModel": _LTX,
    "SanaWMTransformer3DModel": "its sections are split at other places than they are made",
    "AllegroTransformer3DModel": (
        "it rotates three thirds of a head, each by halves; use a RoPE for each, by rotary_offset"
    ),
    "QwenImage21Transformer2DModel": "its text and images take turns, as a mask says",
    "Cosmos3OmniTransformer": "its positions are made by its pipeline alone",
    "BriaFibo2Transformer2DModel": "its tokens are gathered as its perceiver has them",
    "WanAnimate2Transformer3DModel": "its grids have offsets and strides of each call",
    "OmniGenTransformer2DModel": "it has LongRoPE; make a RoPE with that rule of rope_scaling",
}
"""Classes of which no RoPE and positions can be told, and why."""
