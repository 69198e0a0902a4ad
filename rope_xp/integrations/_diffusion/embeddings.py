"""The table of diffusers' rotary modules, a row a class, and why some are left."""

from collections.abc import Callable
from typing import Any

import torch

from rope_xp.integrations._diffusion import tables
from rope_xp.integrations._diffusion.tables import Arguments, Embedding
from rope_xp.rope import RoPE


def _latents(sizes: Callable[[Any], Any], *, heads: bool = False) -> Embedding:
    made = tables.of_latents(sizes, "neighbours", heads=heads)
    return Embedding(made, tables.probe_latents(sizes))


def _calling(*arguments: Any, **named: Any) -> Callable[[Any, RoPE], Arguments]:
    return lambda _module, _rope: (arguments, named)


def _by_period(module: Any) -> RoPE:
    return RoPE(base=float(module.max_period), rotary_dim=module.dim)


def _qwen_probe(*_: Any) -> Arguments:
    return ([[(2, 4, 6), (1, 3, 5)]],), {"device": torch.device("cpu"), "max_txt_seq_len": 7}


_IDS = Embedding(tables.of_ids("neighbours"), tables.probe_ids())
_INDICES = torch.arange(3)
_LINES = (_INDICES, torch.arange(4), torch.arange(5))
_CPU = torch.device("cpu")

ROWS: tuple[tuple[str, Embedding], ...] = (
    (
        """
        FluxPosEmbed Flux2PosEmbed Flux3PosEmbed Krea2RotaryPosEmbed BriaEmbedND BriaPosEmbed
        BriaFiboEmbedND LongCatImagePosEmbed OvisImagePosEmbed
        """,
        _IDS,
    ),
    ("MiniMaxH3RotaryPosEmbed", Embedding(tables.of_ids("halves"), tables.probe_ids())),
    ("Ideogram4MRoPE", Embedding(tables.of_ids("halves"), tables.probe_ids(2))),
    ("RopeEmbedder", Embedding(tables.of_ids("complex"), tables.probe_ids(), "__call__")),
    (
        "Lumina2RotaryPosEmbed",
        Embedding(tables.of_ids("complex"), tables.probe_ids(2), "_get_freqs_cis"),
    ),
    ("HiDreamImageEmbedND", Embedding(tables.matrices_of_ids(2), tables.probe_ids(2))),
    ("PRXEmbedND", Embedding(tables.matrices_of_ids(1), tables.probe_ids(2))),
    ("WanRotaryPosEmbed SkyReelsV2RotaryPosEmbed", _latents(tables.by_three, heads=True)),
    (
        "ChronoEditRotaryPosEmbed",
        Embedding(tables.chronoedit, tables.probe_latents(tables.by_three)),
    ),
    (
        "HunyuanVideoRotaryPosEmbed HunyuanVideo15RotaryPosEmbed MotifVideoRotaryPosEmbed",
        _latents(tables.by_two),
    ),
    ("HunyuanImageRotaryPosEmbed", _latents(tables.by_three)),
    (
        "HunyuanVideoFramepackRotaryPosEmbed",
        Embedding(
            tables.framepack, _calling(frame_indices=_INDICES, height=8, width=12, device=_CPU)
        ),
    ),
    (
        "HeliosRotaryPosEmbed",
        Embedding(
            tables.helios,
            _calling(frame_indices=_INDICES.expand(2, 3), height=4, width=5, device=_CPU),
        ),
    ),
    ("CosmosRotaryPosEmbed", Embedding(tables.cosmos, tables.probe_latents(tables.by_three))),
    ("CogView4RotaryPosEmbed", Embedding(tables.cogview4, tables.probe_latents(tables.square))),
    (
        "GlmImageRotaryPosEmbed",
        Embedding(tables.of_latents(tables.square, "halves"), tables.probe_latents(tables.square)),
    ),
    (
        "EasyAnimateRotaryPosEmbed",
        Embedding(tables.easyanimate, tables.probe_latents(tables.frames_whole)),
    ),
    ("QwenEmbedRope", Embedding(tables.qwen, _qwen_probe)),
    ("NucleusMoEEmbedRope", Embedding(tables.nucleus, _qwen_probe)),
    ("QwenEmbedLayer3DRope", Embedding(tables.qwen_layers, _qwen_probe)),
    ("AudioDiTRotaryEmbedding", Embedding(tables.audio, _calling(torch.zeros(1, 6, 8)))),
    ("MiniMaxMusic3RotaryEmbedding", Embedding(tables.music, _calling(6, _CPU))),
    (
        "Kandinsky5RoPE1D",
        Embedding(tables.kandinsky_text, _calling(_INDICES), rope=_by_period),
    ),
    (
        "Kandinsky5RoPE3D",
        Embedding(tables.kandinsky, _calling((2, 3, 4, 5), _LINES, (1.0, 2.0, 2.0))),
    ),
    (
        "Kandinsky6RoPE3D Kandinsky6SRRoPE3D",
        Embedding(tables.kandinsky6, _calling(_LINES, (1.0, 2.0, 2.0))),
    ),
)

EMBEDDINGS: dict[str, Embedding] = {name: row for names, row in ROWS for name in names.split()}

BY_CALLER = frozenset(
    [
        "CogVideoXTransformer3DModel",
        "ConsisIDTransformer3DModel",
        "StableAudioDiTModel",
        "JoyImageEditTransformer3DModel",
    ]
)
"""Models of which the caller makes the tables, or a method of the model itself."""
