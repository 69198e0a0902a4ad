"""The functions that replace methods of diffusers' rotary modules.

A function takes the transformer's RotaryConfig, the module and the arguments of the method. It
returns tables of the same format and shape, in float32, with angles that stay accurate at any
position.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rope_xp.integrations import _formats
from rope_xp.integrations._diffusion.config import RotaryConfig
from rope_xp.integrations._diffusion.grids import Grid, half_size
from rope_xp.integrations._formats import Format
from rope_xp.rope import RoPE

# For angles of small positions in float32, and one rotation by them.
_TOLERANCE = 1e-5


def write(cos: torch.Tensor, sin: torch.Tensor, form: Format) -> Any:
    """Return tables with one column per pair in a format: a tuple of two, or one array."""
    tables = _formats.write(cos, sin, form)
    return tables if len(tables) > 1 else tables[0]


def build_tables(rope: RoPE, positions: torch.Tensor, form: Format) -> Any:
    """Return float32 tables (..., columns) of positions (components, ...)."""
    if positions.is_floating_point():
        positions = positions.float()
    return write(*rope.cos_sin(positions, rope.rotary_dim or 0, dtype=torch.float32), form)


def span_grid(lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return positions (components, axes...), from those along each axis."""
    if any(line.is_floating_point() for line in lines):
        lines = [line.float() for line in lines]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def arange_on(device: Any) -> Callable[[int], torch.Tensor]:
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


# --- of positions --------------------------------------------------------------------------------


def framepack(
    config: RotaryConfig, module: Any, frame_indices: Any, height: int, width: int, device: Any
) -> Any:
    arange, patch = arange_on(device), module.patch_size
    frames = frame_indices.to(device=device, dtype=torch.int32)
    lines = [frames, arange(height // patch), arange(width // patch)]
    return build_tables(config.rope, span_grid(lines).flatten(1), "neighbours")


def helios(
    config: RotaryConfig, _: Any, frame_indices: Any, height: int, width: int, device: Any
) -> torch.Tensor:
    frames = frame_indices.to(device=device, dtype=torch.int32)
    positions = span_grid([frames.flatten(), arange_on(device)(height), arange_on(device)(width)])
    tables = torch.cat(build_tables(config.rope, positions, "neighbours"), dim=-1)
    return tables.view(*frames.shape, *tables.shape[1:]).movedim(-1, 1)


def kandinsky_text(_: Any, module: Any, pos: torch.Tensor) -> Any:
    rope = RoPE(base=float(module.max_period), rotary_dim=module.dim)
    return build_tables(rope, pos, "matrices").unsqueeze(-4)


def kandinsky5(
    config: RotaryConfig, module: Any, shape: Any, pos: Any, scale_factor: Any = (1, 1, 1)
) -> Any:
    return kandinsky6(config, module, pos, scale_factor).expand(shape[0], *[-1] * 7)


def kandinsky6(config: RotaryConfig, _: Any, pos: Any, scale_factor: Any = (1, 1, 1)) -> Any:
    scaled = zip(pos, scale_factor, strict=True)
    lines = [line if scale == 1 else line / scale for line, scale in scaled]
    return build_tables(config.rope, span_grid(lines), "matrices").unsqueeze(-4)


# --- of sizes ------------------------------------------------------------------------------------


def qwen(
    config: RotaryConfig, _: Any, video_fhw: Any, device: Any = None, max_txt_seq_len: Any = None
) -> Any:
    """Return tables of the images, one after the other, and of text behind the largest one."""
    sizes = _image_sizes(video_fhw)
    frames, start = range(len(sizes)), max(map(_half_size, sizes))
    return _images_and_text(config, sizes, frames, start, max_txt_seq_len, device)


def nucleus(
    config: RotaryConfig, _: Any, video_fhw: Any, device: Any = None, max_txt_seq_len: Any = None
) -> Any:
    """Return the same, with the text behind the last image."""
    sizes = _image_sizes(video_fhw)
    frames, start = range(len(sizes)), _half_size(sizes[-1])
    return _images_and_text(config, sizes, frames, start, max_txt_seq_len, device)


def qwen_layers(
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
    arange, positions = arange_on(device), []
    for frame, size in zip(frames, sizes, strict=True):
        times, *others = config.positions.lines(Grid(*size)._replace(arange=arange))
        positions.append(span_grid([times + frame, *others]).flatten(1))
    text = (start + arange(int(tokens))).expand(3, -1)
    images = build_tables(config.rope, torch.cat(positions, dim=-1), "complex")
    return images, build_tables(config.rope, text, "complex")


def audio(
    config: RotaryConfig, module: Any, hidden_states: torch.Tensor, seq_len: int | None = None
) -> tuple[torch.Tensor, ...]:
    tokens = hidden_states.shape[1] if seq_len is None else seq_len
    tables = music(config, module, tokens, hidden_states.device)
    return tuple(table.to(hidden_states.dtype) for table in tables)


def music(config: RotaryConfig, _: Any, seq_len: int, device: Any) -> Any:
    return build_tables(config.rope, arange_on(device)(seq_len), "halves")
