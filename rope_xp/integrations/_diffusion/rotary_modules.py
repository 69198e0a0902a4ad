"""The rotary modules of diffusers, and what computes their tables by rope_xp: a row for each.

Tables have the format and shape of the module's own, in float32, with angles that stay accurate at
any position.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch

from rope_xp.integrations import _formats
from rope_xp.integrations._diffusion.config import RotaryConfig
from rope_xp.integrations._diffusion.grids import Grid, half_size
from rope_xp.integrations._formats import Format
from rope_xp.rope import RoPE


class RotaryModule(NamedTuple):
    """The replacement of a rotary module's method."""

    compute: Callable[..., Any]  # from the RotaryConfig, the module and the method's arguments
    arguments: Callable[[Any, RotaryConfig], tuple[Any, ...]]  # of a small call, to compare
    method: str = "forward"


def _build_tables(rope: RoPE, positions: torch.Tensor, form: Format) -> Any:
    """Return float32 tables (..., columns) of positions (components, ...)."""
    if positions.is_floating_point():
        positions = positions.float()
    cos, sin = rope.cos_sin(positions, rope.rotary_dim or 0, dtype=torch.float32)
    return _formats.unwrap(_formats.write(cos, sin, form))


def _span_grid(lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return positions (components, axes...), from those along each axis."""
    if any(line.is_floating_point() for line in lines):
        lines = [line.float() for line in lines]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def _arange_on(device: Any) -> Callable[[int], torch.Tensor]:
    return functools.partial(torch.arange, dtype=torch.int32, device=device)


def _from_ids(
    form: Format, batch: tuple[int, ...] = (), heads: int = 0, method: str = "forward"
) -> RotaryModule:
    """Describe a module that is given positions (batch..., tokens, components)."""

    def compute(config: RotaryConfig, _: Any, ids: torch.Tensor) -> Any:
        tables = _build_tables(config.rope, ids.movedim(-1, 0), form)
        return tables.unsqueeze(heads) if form == "matrices" else tables

    def arguments(_: Any, config: RotaryConfig) -> tuple[Any, ...]:
        components = 1 + max(config.rope.position_axes or (0,))
        ids = torch.arange(6)[:, None] + torch.arange(components)
        return (ids.expand(*batch, 6, components),)

    return RotaryModule(compute, arguments, method)


def _calling(compute: Callable[..., Any], *arguments: Any) -> RotaryModule:
    return RotaryModule(compute, lambda *_: arguments)


def _framepack(
    config: RotaryConfig, module: Any, frame_indices: Any, height: int, width: int, device: Any
) -> Any:
    arange, patch = _arange_on(device), module.patch_size
    frames = frame_indices.to(device=device, dtype=torch.int32)
    lines = [frames, arange(height // patch), arange(width // patch)]
    return _build_tables(config.rope, _span_grid(lines).flatten(1), "neighbours")


def _helios(
    config: RotaryConfig, _: Any, frame_indices: Any, height: int, width: int, device: Any
) -> torch.Tensor:
    arange, frames = _arange_on(device), frame_indices.to(device=device, dtype=torch.int32)
    positions = _span_grid([frames.flatten(), arange(height), arange(width)])
    tables = torch.cat(_build_tables(config.rope, positions, "neighbours"), dim=-1)
    return tables.view(*frames.shape, *tables.shape[1:]).movedim(-1, 1)


def _kandinsky_text(_: Any, module: Any, pos: torch.Tensor) -> Any:
    rope = RoPE(base=float(module.max_period), rotary_dim=module.dim)
    return _build_tables(rope, pos, "matrices").unsqueeze(-4)


def _kandinsky5(
    config: RotaryConfig, module: Any, shape: Any, pos: Any, scale_factor: Any = (1, 1, 1)
) -> Any:
    return _kandinsky6(config, module, pos, scale_factor).expand(shape[0], *[-1] * 7)


def _kandinsky6(config: RotaryConfig, _: Any, pos: Any, scale_factor: Any = (1, 1, 1)) -> Any:
    scaled = zip(pos, scale_factor, strict=True)
    lines = [line if scale == 1 else line / scale for line, scale in scaled]
    return _build_tables(config.rope, _span_grid(lines), "matrices").unsqueeze(-4)


def _from_latents(form: Format, *, heads: bool = False) -> RotaryModule:
    """Describe a module that is given latents (batch, channels, axes...)."""

    def patch_sizes(module: Any, axes: int) -> tuple[int, ...]:
        size = module.patch_size
        if isinstance(size, int):
            size = (getattr(module, "patch_size_t", 1), size, size)
        return tuple(size)[-axes:]

    def compute(
        config: RotaryConfig, module: Any, hidden_states: torch.Tensor, fps: int | None = None
    ) -> Any:
        lengths = hidden_states.shape[2:]
        patches = zip(lengths, patch_sizes(module, len(lengths)), strict=True)
        frames, height, width = [1, *(n // size for n, size in patches)][-3:]
        grid = Grid(frames, height, width, fps=fps, arange=_arange_on(hidden_states.device))
        positions = _span_grid(config.positions.lines(grid)).flatten(1)
        tables = _build_tables(config.rope, positions, form)
        return tuple(table[None, :, None] for table in tables) if heads else tables

    def arguments(module: Any, config: RotaryConfig) -> tuple[Any, ...]:
        axes = 1 + max(config.rope.position_axes or ())
        patches = zip(patch_sizes(module, axes), (3, 4, 5)[-axes:], strict=True)
        return (torch.zeros(1, 1, *[size * n for size, n in patches]),)

    return RotaryModule(compute, arguments)


def _from_image_sizes(text_behind: Literal["largest", "last", "layers"]) -> RotaryModule:
    """Describe a module of images, one after the other, and of text behind an image.

    Layers of an image are followed by the image itself in frame -1.
    """
    is_layered = text_behind == "layers"
    names = ("max_txt_seq_len", "device") if is_layered else ("device", "max_txt_seq_len")

    def compute(config: RotaryConfig, _: Any, video_fhw: Any, *rest: Any, **named: Any) -> Any:
        named |= zip(names, rest, strict=False)
        tokens, arange = named.get("max_txt_seq_len"), _arange_on(named.get("device"))
        if tokens is None:
            raise ValueError("`max_txt_seq_len` must be provided.")  # the modules' own words
        sizes = video_fhw[0] if isinstance(video_fhw, list) else video_fhw
        sizes = sizes if isinstance(sizes, list) else [sizes]
        halves = [int(half_size(Grid(*size))) for size in sizes]
        start, frames = max(halves), list(range(len(sizes)))
        if is_layered:
            start, frames[-1] = max(len(sizes) - 1, start), -1
        elif text_behind == "last":
            start = halves[-1]
        positions = []
        for frame, size in zip(frames, sizes, strict=True):
            times, *others = config.positions.lines(Grid(*size)._replace(arange=arange))
            positions.append(_span_grid([times + frame, *others]).flatten(1))
        text = (start + arange(int(tokens))).expand(3, -1)
        images = _build_tables(config.rope, torch.cat(positions, dim=-1), "complex")
        return images, _build_tables(config.rope, text, "complex")

    values = {"device": _CPU, "max_txt_seq_len": 7}
    return _calling(compute, [[(2, 4, 6), (1, 3, 5)]], *(values[name] for name in names))


def _audio(
    config: RotaryConfig, module: Any, hidden_states: torch.Tensor, seq_len: int | None = None
) -> tuple[torch.Tensor, ...]:
    tokens = hidden_states.shape[1] if seq_len is None else seq_len
    tables = _music(config, module, tokens, hidden_states.device)
    return tuple(table.to(hidden_states.dtype) for table in tables)


def _music(config: RotaryConfig, _: Any, seq_len: int, device: Any) -> Any:
    return _build_tables(config.rope, _arange_on(device)(seq_len), "halves")


_WAN = _from_latents("neighbours", heads=True)
_FRAMES, _CPU = torch.arange(3), torch.device("cpu")
_LINES = (_FRAMES, torch.arange(4), torch.arange(5))

_ROWS: dict[str, RotaryModule] = {
    """
        FluxPosEmbed Flux2PosEmbed Flux3PosEmbed Krea2RotaryPosEmbed BriaEmbedND
        BriaFiboEmbedND LongCatImagePosEmbed OvisImagePosEmbed
    """: _from_ids("neighbours"),
    "MiniMaxH3RotaryPosEmbed": _from_ids("halves"),
    "RopeEmbedder": _from_ids("complex", method="__call__"),
    "Lumina2RotaryPosEmbed": _from_ids("complex", (2,), method="_get_freqs_cis"),
    "HiDreamImageEmbedND": _from_ids("matrices", (2,), heads=2),
    "PRXEmbedND": _from_ids("matrices", (2,), heads=1),
    "WanRotaryPosEmbed SkyReelsV2RotaryPosEmbed ChronoEditRotaryPosEmbed": _WAN,
    """
        HunyuanVideoRotaryPosEmbed HunyuanVideo15RotaryPosEmbed HunyuanImageRotaryPosEmbed
        MotifVideoRotaryPosEmbed EasyAnimateRotaryPosEmbed
    """: _from_latents("neighbours"),
    "CosmosRotaryPosEmbed CogView4RotaryPosEmbed GlmImageRotaryPosEmbed": _from_latents("halves"),
    "HunyuanVideoFramepackRotaryPosEmbed": _calling(_framepack, _FRAMES, 8, 12, _CPU),
    "HeliosRotaryPosEmbed": _calling(_helios, _FRAMES.expand(2, 3), 4, 5, _CPU),
    "QwenEmbedRope": _from_image_sizes("largest"),
    "NucleusMoEEmbedRope": _from_image_sizes("last"),
    "QwenEmbedLayer3DRope": _from_image_sizes("layers"),
    "AudioDiTRotaryEmbedding": _calling(_audio, torch.zeros(1, 6, 8)),
    "MiniMaxMusic3RotaryEmbedding": _calling(_music, 6, _CPU),
    "Kandinsky5RoPE1D": _calling(_kandinsky_text, _FRAMES),
    "Kandinsky5RoPE3D": _calling(_kandinsky5, (2, 3, 4, 5), _LINES, (1.0, 2.0, 2.0)),
    "Kandinsky6RoPE3D Kandinsky6SRRoPE3D": _calling(_kandinsky6, _LINES, (1.0, 2.0, 2.0)),
}
ROTARY_MODULES = {name: row for names, row in _ROWS.items() for name in names.split()}

TABLES_FROM_CALLER = (
    "CogVideoXTransformer3DModel",
    "ConsisIDTransformer3DModel",
    "StableAudioDiTModel",
    "JoyImageEditTransformer3DModel",
)
"""Models whose tables come from the caller, or from a method of the model itself."""
