"""The rotary modules of diffusers, and the functions that replace their methods: a row for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rope_xp.integrations._diffusion import tables
from rope_xp.integrations._diffusion.config import RotaryConfig
from rope_xp.integrations._diffusion.grids import Grid
from rope_xp.integrations._formats import Format


@dataclass(frozen=True)
class RotaryModule:
    """The replacement of a rotary module's method."""

    compute: Callable[..., Any]
    arguments: Callable[[Any, RotaryConfig], tuple[Any, ...]]
    """Returns the arguments of a small call, which compares the two."""
    method: str = "forward"


def _from_ids(
    form: Format, batch: tuple[int, ...] = (), heads: int = 0, method: str = "forward"
) -> RotaryModule:
    """Describe a module that is given positions (batch..., tokens, components).

    Matrices get an axis for the heads.
    """

    def compute(config: RotaryConfig, _: Any, ids: torch.Tensor) -> Any:
        columns = tables.build_tables(config.rope, ids.movedim(-1, 0), form)
        return columns.unsqueeze(heads) if form == "matrices" else columns

    def arguments(_: Any, config: RotaryConfig) -> tuple[Any, ...]:
        components = 1 + max(config.rope.position_axes or (0,))
        ids = torch.arange(6)[:, None] + torch.arange(components)
        return (ids.expand(*batch, 6, components),)

    return RotaryModule(compute, arguments, method)


def _from_latents(form: Format, *, heads: bool = False) -> RotaryModule:
    """Describe a module that is given latents (batch, channels, axes...)."""

    def compute(
        config: RotaryConfig, module: Any, hidden_states: torch.Tensor, fps: int | None = None
    ) -> Any:
        lengths = hidden_states.shape[2:]
        patches = zip(lengths, _patch_sizes(module, len(lengths)), strict=True)
        frames, height, width = [1, *(n // size for n, size in patches)][-3:]
        grid = Grid(frames, height, width, fps=fps, arange=tables.arange_on(hidden_states.device))
        positions = tables.span_grid(config.positions.lines(grid)).flatten(1)
        columns = tables.build_tables(config.rope, positions, form)
        return tuple(table[None, :, None] for table in columns) if heads else columns

    def arguments(module: Any, config: RotaryConfig) -> tuple[Any, ...]:
        axes = 1 + max(config.rope.position_axes or ())
        patches = zip(_patch_sizes(module, axes), (3, 4, 5)[-axes:], strict=True)
        return (torch.zeros(1, 1, *[size * n for size, n in patches]),)

    return RotaryModule(compute, arguments)


def _patch_sizes(module: Any, axes: int) -> tuple[int, ...]:
    size = module.patch_size
    if isinstance(size, int):
        size = (getattr(module, "patch_size_t", 1), size, size)
    return tuple(size)[-axes:]


def _calling(compute: Callable[..., Any], *arguments: Any) -> RotaryModule:
    return RotaryModule(compute, lambda _module, _config: arguments)


_IDS = _from_ids("neighbours")
_LATENTS = _from_latents("neighbours")
_HALVES = _from_latents("halves")
_WAN = _from_latents("neighbours", heads=True)
_FRAMES, _CPU = torch.arange(3), torch.device("cpu")
_LINES = (_FRAMES, torch.arange(4), torch.arange(5))
_SIZES = [[(2, 4, 6), (1, 3, 5)]]

ROTARY_MODULES: dict[str, RotaryModule] = {
    "FluxPosEmbed": _IDS,
    "Flux2PosEmbed": _IDS,
    "Flux3PosEmbed": _IDS,
    "Krea2RotaryPosEmbed": _IDS,
    "BriaEmbedND": _IDS,
    "BriaPosEmbed": _IDS,
    "BriaFiboEmbedND": _IDS,
    "LongCatImagePosEmbed": _IDS,
    "OvisImagePosEmbed": _IDS,
    "MiniMaxH3RotaryPosEmbed": _from_ids("halves"),
    "Ideogram4MRoPE": _from_ids("halves", (2,)),
    "RopeEmbedder": _from_ids("complex", method="__call__"),
    "Lumina2RotaryPosEmbed": _from_ids("complex", (2,), method="_get_freqs_cis"),
    "HiDreamImageEmbedND": _from_ids("matrices", (2,), heads=2),
    "PRXEmbedND": _from_ids("matrices", (2,), heads=1),
    "WanRotaryPosEmbed": _WAN,
    "SkyReelsV2RotaryPosEmbed": _WAN,
    "ChronoEditRotaryPosEmbed": _WAN,
    "HunyuanVideoRotaryPosEmbed": _LATENTS,
    "HunyuanVideo15RotaryPosEmbed": _LATENTS,
    "HunyuanImageRotaryPosEmbed": _LATENTS,
    "MotifVideoRotaryPosEmbed": _LATENTS,
    "EasyAnimateRotaryPosEmbed": _LATENTS,
    "CosmosRotaryPosEmbed": _HALVES,
    "CogView4RotaryPosEmbed": _HALVES,
    "GlmImageRotaryPosEmbed": _HALVES,
    "HunyuanVideoFramepackRotaryPosEmbed": _calling(tables.framepack, _FRAMES, 8, 12, _CPU),
    "HeliosRotaryPosEmbed": _calling(tables.helios, _FRAMES.expand(2, 3), 4, 5, _CPU),
    "QwenEmbedRope": _calling(tables.qwen, _SIZES, _CPU, 7),
    "NucleusMoEEmbedRope": _calling(tables.nucleus, _SIZES, _CPU, 7),
    "QwenEmbedLayer3DRope": _calling(tables.qwen_layers, _SIZES, 7, _CPU),
    "AudioDiTRotaryEmbedding": _calling(tables.audio, torch.zeros(1, 6, 8)),
    "MiniMaxMusic3RotaryEmbedding": _calling(tables.music, 6, _CPU),
    "Kandinsky5RoPE1D": _calling(tables.kandinsky_text, _FRAMES),
    "Kandinsky5RoPE3D": _calling(tables.kandinsky5, (2, 3, 4, 5), _LINES, (1.0, 2.0, 2.0)),
    "Kandinsky6RoPE3D": _calling(tables.kandinsky6, _LINES, (1.0, 2.0, 2.0)),
    "Kandinsky6SRRoPE3D": _calling(tables.kandinsky6, _LINES, (1.0, 2.0, 2.0)),
}

TABLES_FROM_CALLER = frozenset(
    [
        "CogVideoXTransformer3DModel",
        "ConsisIDTransformer3DModel",
        "StableAudioDiTModel",
        "JoyImageEditTransformer3DModel",
    ]
)
"""Models whose tables come from the caller, or from a method of the model itself."""
