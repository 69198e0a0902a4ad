"""The rotary modules of diffusers, and the functions that replace their methods: a row for each.

A function takes the transformer's RotaryConfig, the module and the arguments of the method. It
returns tables of the same format and shape, in float32, with angles that stay accurate at any
position.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rope_xp.integrations import _formats
from rope_xp.integrations._diffusion.config import RotaryConfig
from rope_xp.integrations._diffusion.grids import Grid, half_size
from rope_xp.integrations._formats import Format
from rope_xp.rope import RoPE

# For angles of small positions in float32, and one rotation by them.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class RotaryModule:
    """The replacement of a rotary module's method."""

    compute: Callable[..., Any]
    arguments: Callable[[Any, RotaryConfig], tuple[Any, ...]]
    """Returns the arguments of a small call, which compares the two."""
    method: str = "forward"


# --- formats -------------------------------------------------------------------------------------


def write(cos: torch.Tensor, sin: torch.Tensor, form: Format) -> Any:
    """Return tables with one column per pair in a format: a tuple of two, or one array."""
    tables = _formats.write(cos, sin, form)
    return tables if len(tables) > 1 else tables[0]


def _tables(rope: RoPE, positions: torch.Tensor, form: Format) -> Any:
    """Return float32 tables (..., columns) of positions (components, ...)."""
    if positions.is_floating_point():
        positions = positions.float()
    return write(*rope.cos_sin(positions, rope.rotary_dim or 0, dtype=torch.float32), form)


def _grid(lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return positions (components, axes...), from those along each axis."""
    if any(line.is_floating_point() for line in lines):
        lines = [line.float() for line in lines]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def _arange(device: Any) -> Callable[[int], torch.Tensor]:
    return functools.partial(torch.arange, dtype=torch.int32, device=device)


def are_close(ours: Any, theirs: Any) -> bool:
    """Return whether tables or rotated arrays are equal but for rounding."""
    if isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(are_close, ours, theirs))
    if (ours.shape, ours.is_complex()) != (theirs.shape, theirs.is_complex()):
        return False
    # Some round to bfloat16: modules of a model that was cast, and a function of Kandinsky.
    eps = torch.finfo(theirs.dtype).eps
    theirs = theirs.to(device=ours.device, dtype=ours.dtype)
    return bool(torch.allclose(ours, theirs, rtol=eps, atol=max(_TOLERANCE, eps)))


# --- modules that are given positions ------------------------------------------------------------


def _from_ids(
    form: Format, batch: tuple[int, ...] = (), heads: int = 0, method: str = "forward"
) -> RotaryModule:
    """Describe a module that is given positions (batch..., tokens, components).

    Matrices get an axis for the heads.
    """

    def compute(config: RotaryConfig, _: Any, ids: torch.Tensor) -> Any:
        tables = _tables(config.rope, ids.movedim(-1, 0), form)
        return tables.unsqueeze(heads) if form == "matrices" else tables

    def arguments(_: Any, config: RotaryConfig) -> tuple[Any, ...]:
        components = 1 + max(config.rope.position_axes or (0,))
        ids = torch.arange(6)[:, None] + torch.arange(components)
        return (ids.expand(*batch, 6, components),)

    return RotaryModule(compute, arguments, method)


def _framepack(
    config: RotaryConfig, module: Any, frame_indices: Any, height: int, width: int, device: Any
) -> Any:
    arange, patch = _arange(device), module.patch_size
    frames = frame_indices.to(device=device, dtype=torch.int32)
    lines = [frames, arange(height // patch), arange(width // patch)]
    return _tables(config.rope, _grid(lines).flatten(1), "neighbours")


def _helios(
    config: RotaryConfig, _: Any, frame_indices: Any, height: int, width: int, device: Any
) -> torch.Tensor:
    frames = frame_indices.to(device=device, dtype=torch.int32)
    positions = _grid([frames.flatten(), _arange(device)(height), _arange(device)(width)])
    tables = torch.cat(_tables(config.rope, positions, "neighbours"), dim=-1)
    return tables.view(*frames.shape, *tables.shape[1:]).movedim(-1, 1)


def _kandinsky_text(_: Any, module: Any, pos: torch.Tensor) -> Any:
    rope = RoPE(base=float(module.max_period), rotary_dim=module.dim)
    return _tables(rope, pos, "matrices").unsqueeze(-4)


def _kandinsky5(
    config: RotaryConfig, module: Any, shape: Any, pos: Any, scale_factor: Any = (1, 1, 1)
) -> Any:
    return _kandinsky6(config, module, pos, scale_factor).expand(shape[0], *[-1] * 7)


def _kandinsky6(config: RotaryConfig, _: Any, pos: Any, scale_factor: Any = (1, 1, 1)) -> Any:
    scaled = zip(pos, scale_factor, strict=True)
    lines = [line if scale == 1 else line / scale for line, scale in scaled]
    return _tables(config.rope, _grid(lines), "matrices").unsqueeze(-4)


# --- modules that count tokens -------------------------------------------------------------------


def _from_latents(form: Format, *, heads: bool = False) -> RotaryModule:
    """Describe a module that is given latents (batch, channels, axes...)."""

    def compute(
        config: RotaryConfig, module: Any, hidden_states: torch.Tensor, fps: int | None = None
    ) -> Any:
        lengths = hidden_states.shape[2:]
        patches = zip(lengths, _patch_sizes(module, len(lengths)), strict=True)
        frames, height, width = [1, *(n // size for n, size in patches)][-3:]
        grid = Grid(frames, height, width, fps=fps, arange=_arange(hidden_states.device))
        positions = _grid(config.positions.lines(grid)).flatten(1)
        tables = _tables(config.rope, positions, form)
        return tuple(table[None, :, None] for table in tables) if heads else tables

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


def _qwen(
    config: RotaryConfig, _: Any, video_fhw: Any, device: Any = None, max_txt_seq_len: Any = None
) -> Any:
    """Return tables of the images, one after the other, and of text behind the largest one."""
    sizes = _image_sizes(video_fhw)
    frames, start = range(len(sizes)), max(map(_half_size, sizes))
    return _images_and_text(config, sizes, frames, start, max_txt_seq_len, device)


def _nucleus(
    config: RotaryConfig, _: Any, video_fhw: Any, device: Any = None, max_txt_seq_len: Any = None
) -> Any:
    """Return the same, with the text behind the last image."""
    sizes = _image_sizes(video_fhw)
    frames, start = range(len(sizes)), _half_size(sizes[-1])
    return _images_and_text(config, sizes, frames, start, max_txt_seq_len, device)


def _qwen_layers(
    config: RotaryConfig, _: Any, video_fhw: Any, max_txt_seq_len: Any, device: Any = None
) -> Any:
    """Return the same for the layers of an image, followed by the image itself in frame -1."""
    sizes = _image_sizes(video_fhw)
    layers = len(sizes) - 1
    frames, start = [*range(layers), -1], max(layers, *map(_half_size, sizes))
    return _images_and_text(config, sizes, frames, start, max_txt_seq_len, device)


def _half_size(size: Any) -> int:
    return int(half_size(Grid(*size)))


def _image_sizes(video_fhw: Any) -> list[Any]:
    sizes = video_fhw[0] if isinstance(video_fhw, list) else video_fhw
    return sizes if isinstance(sizes, list) else [sizes]


def _images_and_text(
    config: RotaryConfig, sizes: list[Any], frames: Any, start: int, tokens: Any, device: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if tokens is None:
        raise ValueError("`max_txt_seq_len` must be provided.")  # the modules' own words
    arange, positions = _arange(device), []
    for frame, size in zip(frames, sizes, strict=True):
        times, *others = config.positions.lines(Grid(*size)._replace(arange=arange))
        positions.append(_grid([times + frame, *others]).flatten(1))
    text = (start + arange(int(tokens))).expand(3, -1)
    images = _tables(config.rope, torch.cat(positions, dim=-1), "complex")
    return images, _tables(config.rope, text, "complex")


def _audio(
    config: RotaryConfig, module: Any, hidden_states: torch.Tensor, seq_len: int | None = None
) -> tuple[torch.Tensor, ...]:
    tokens = hidden_states.shape[1] if seq_len is None else seq_len
    tables = _music(config, module, tokens, hidden_states.device)
    return tuple(table.to(hidden_states.dtype) for table in tables)


def _music(config: RotaryConfig, _: Any, seq_len: int, device: Any) -> Any:
    return _tables(config.rope, _arange(device)(seq_len), "halves")


# --- classes -------------------------------------------------------------------------------------


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
    "HunyuanVideoFramepackRotaryPosEmbed": _calling(_framepack, _FRAMES, 8, 12, _CPU),
    "HeliosRotaryPosEmbed": _calling(_helios, _FRAMES.expand(2, 3), 4, 5, _CPU),
    "QwenEmbedRope": _calling(_qwen, _SIZES, _CPU, 7),
    "NucleusMoEEmbedRope": _calling(_nucleus, _SIZES, _CPU, 7),
    "QwenEmbedLayer3DRope": _calling(_qwen_layers, _SIZES, 7, _CPU),
    "AudioDiTRotaryEmbedding": _calling(_audio, torch.zeros(1, 6, 8)),
    "MiniMaxMusic3RotaryEmbedding": _calling(_music, 6, _CPU),
    "Kandinsky5RoPE1D": _calling(_kandinsky_text, _FRAMES),
    "Kandinsky5RoPE3D": _calling(_kandinsky5, (2, 3, 4, 5), _LINES, (1.0, 2.0, 2.0)),
    "Kandinsky6RoPE3D": _calling(_kandinsky6, _LINES, (1.0, 2.0, 2.0)),
    "Kandinsky6SRRoPE3D": _calling(_kandinsky6, _LINES, (1.0, 2.0, 2.0)),
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
