"""The modules of diffusers that make cos and sin, and what takes their place: a row a class.

Each function here stands for a method of such a module. It is given the RoPE and what the method
is, and returns the same: tables of the same form and shape, in float32, of exact angles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rope_xp.integrations import _formats
from rope_xp.integrations._diffusion.conventions import matrices
from rope_xp.integrations._diffusion.lookups import centred, counted, looked_up, on_grid
from rope_xp.integrations._formats import Format
from rope_xp.rope import RoPE

Made = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Embedding:
    """What a class of rotary modules does."""

    made: Made
    """Called with the RoPE, the module, and the arguments of the method."""
    probe: Callable[[Any, RoPE], Arguments]
    """Returns arguments of a small call."""
    method: str = "forward"
    rope: Callable[[Any], RoPE] | None = None
    """The RoPE of modules that have another than the configuration of the model says."""


# --- of identifiers ------------------------------------------------------------------------------


def of_ids(form: Format) -> Made:
    """Positions (..., components) are given."""

    def made(rope: RoPE, _: Any, ids: torch.Tensor) -> Any:
        tables = _formats.written(*looked_up(rope, ids.movedim(-1, 0)), form)
        return tables if len(tables) > 1 else tables[0]

    return made


def matrices_of_ids(heads: int) -> Made:
    """Positions (batch, tokens, components) are given, and an axis for heads is put here."""

    def made(rope: RoPE, _: Any, ids: torch.Tensor) -> torch.Tensor:
        return matrices(*looked_up(rope, ids.movedim(-1, 0))).unsqueeze(heads)

    return made


def probe_ids(*batch: int) -> Callable[[Any, RoPE], Arguments]:
    def probe(_: Any, rope: RoPE) -> Arguments:
        axes = 1 + max(rope.position_axes or (0,))
        ids = torch.arange(6)[:, None] + torch.arange(axes)
        return (ids.expand(*batch, 6, axes),), {}

    return probe


# --- of latents ----------------------------------------------------------------------------------


def of_latents(sizes: Callable[[Any], Sequence[int]], form: Format, *, heads: bool = False) -> Made:
    """Latents (batch, channels, axes...) are given, and patched in these sizes."""

    def made(rope: RoPE, module: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        patches = zip(hidden_states.shape[2:], sizes(module), strict=True)
        lines = counted([n // size for n, size in patches], hidden_states.device)
        tables = _formats.written(*on_grid(rope, lines), form)
        return tuple(t[None, :, None] for t in tables) if heads else tables

    return made


def chronoedit(rope: RoPE, module: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    patches = zip(hidden_states.shape[2:], module.patch_size, strict=True)
    lines = counted([n // size for n, size in patches], hidden_states.device)
    if hidden_states.shape[2] == 2:
        lines[0] = lines[0] * (module.temporal_skip_len - 1)
    tables = _formats.written(*on_grid(rope, lines), "neighbours")
    return tuple(t[None, :, None] for t in tables)


def cosmos(
    rope: RoPE, module: Any, hidden_states: torch.Tensor, fps: int | None = None
) -> tuple[torch.Tensor, ...]:
    patches = zip(hidden_states.shape[2:], module.patch_size, strict=True)
    lines = counted([n // size for n, size in patches], hidden_states.device)
    if fps is not None:
        lines = [line.float() for line in lines]
        lines[0] = lines[0] / fps * module.base_fps
    return _formats.written(*on_grid(rope, lines), "halves")


def cogview4(rope: RoPE, module: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes = [n // module.patch_size for n in hidden_states.shape[2:]]
    lines = [
        line * whole // n
        for line, whole, n in zip(
            counted(sizes, hidden_states.device), module.rope_axes_dim, sizes, strict=True
        )
    ]
    return _formats.written(*on_grid(rope, lines), "halves")


def easyanimate(rope: RoPE, module: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    frames, height, width = hidden_states.shape[2:]
    sizes = height // module.patch_size, width // module.patch_size
    base = 60 // module.patch_size, 90 // module.patch_size
    region = module.get_resize_crop_region_for_grid(sizes, base[1], base[0])
    lines = [line.float() for line in counted([frames], hidden_states.device)]
    for first, end, n in zip(*region, sizes, strict=True):
        last = end * (n - 1) / n
        lines.append(torch.linspace(first, last, n, device=hidden_states.device))
    return _formats.written(*on_grid(rope, lines), "neighbours")


def probe_latents(sizes: Callable[[Any], Sequence[int]]) -> Callable[[Any, RoPE], Arguments]:
    def probe(module: Any, _: RoPE) -> Arguments:
        patch = sizes(module)
        lengths = [size * n for size, n in zip(patch, (3, 4, 5)[-len(patch) :], strict=True)]
        return (torch.zeros(1, 1, *lengths),), {}

    return probe


def by_three(module: Any) -> Sequence[int]:
    return tuple(module.patch_size)


def by_two(module: Any) -> Sequence[int]:
    return module.patch_size_t, module.patch_size, module.patch_size


def square(module: Any) -> Sequence[int]:
    return module.patch_size, module.patch_size


def frames_whole(module: Any) -> Sequence[int]:
    return 1, module.patch_size, module.patch_size


# --- of sizes ------------------------------------------------------------------------------------


def framepack(
    rope: RoPE, module: Any, frame_indices: torch.Tensor, height: int, width: int, device: Any
) -> tuple[torch.Tensor, ...]:
    patch = module.patch_size
    rows, columns = counted([height // patch, width // patch], torch.device(device))
    lines = [frame_indices.to(device=device, dtype=torch.int32), rows, columns]
    return _formats.written(*on_grid(rope, lines), "neighbours")


def helios(
    rope: RoPE, _: Any, frame_indices: torch.Tensor, height: int, width: int, device: Any
) -> torch.Tensor:
    frames = frame_indices.to(device=device, dtype=torch.int32)
    rows, columns = counted([height, width], torch.device(device))
    shape = (*frames.shape, height, width)
    lines = frames[:, :, None, None], rows[:, None], columns
    tables = _formats.written(
        *looked_up(rope, torch.stack([line.expand(shape) for line in lines])), "neighbours"
    )
    return torch.cat(tables, dim=-1).movedim(-1, 1)


def qwen(
    rope: RoPE,
    _: Any,
    video_fhw: Any,
    device: torch.device | None = None,
    max_txt_seq_len: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what images or videos are turned by, one after the other, and the text behind them."""
    images = _listed(video_fhw)
    after = max(max(height, width) // 2 for _, height, width in images)
    return _beside(rope, images, range(len(images)), after, max_txt_seq_len, device)


def nucleus(
    rope: RoPE,
    _: Any,
    video_fhw: Any,
    device: torch.device | None = None,
    max_txt_seq_len: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same, where the text lies behind the last image alone."""
    images = _listed(video_fhw)
    after = max(images[-1][1:]) // 2
    return _beside(rope, images, range(len(images)), after, max_txt_seq_len, device)


def qwen_layers(
    rope: RoPE,
    _: Any,
    video_fhw: Any,
    max_txt_seq_len: Any,
    device: torch.device | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same of the layers of an image, the last of which is the one they are made of."""
    images = _listed(video_fhw)
    after = max(max(height, width) // 2 for _, height, width in images)
    layers = len(images) - 1
    return _beside(rope, images, [*range(layers), -1], max(after, layers), max_txt_seq_len, device)


def _listed(video_fhw: Any) -> list[Any]:
    one = video_fhw[0] if isinstance(video_fhw, list) else video_fhw
    return one if isinstance(one, list) else [one]


def _beside(
    rope: RoPE,
    images: list[Any],
    firsts: Sequence[int],
    after: int,
    tokens: Any,
    device: torch.device | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if tokens is None:
        raise ValueError("`max_txt_seq_len` must be provided.")  # as the modules' own
    on = torch.device("cpu") if device is None else torch.device(device)
    found = []
    for first, (frames, height, width) in zip(firsts, images, strict=True):
        time = torch.arange(frames, dtype=torch.int32, device=on) + first
        found.append(on_grid(rope, [time, centred(height, on), centred(width, on)]))
    text = after + torch.arange(int(tokens), dtype=torch.int32, device=on)
    cos, sin = (torch.cat(parts) for parts in zip(*found, strict=True))
    (image,) = _formats.written(cos, sin, "complex")
    (beside,) = _formats.written(*looked_up(rope, text.expand(3, int(tokens))), "complex")
    return image, beside


def audio(
    rope: RoPE, _: Any, hidden_states: torch.Tensor, seq_len: int | None = None
) -> tuple[torch.Tensor, ...]:
    n = hidden_states.shape[1] if seq_len is None else seq_len
    tables = looked_up(rope, torch.arange(n, dtype=torch.int32, device=hidden_states.device))
    return tuple(t.to(hidden_states.dtype) for t in _formats.written(*tables, "halves"))


def music(rope: RoPE, _: Any, seq_len: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    positions = torch.arange(seq_len, dtype=torch.int32, device=device)
    return _formats.written(*looked_up(rope, positions), "halves")


def kandinsky_text(rope: RoPE, _: Any, pos: torch.Tensor) -> torch.Tensor:
    return matrices(*looked_up(rope, pos)).unsqueeze(-4)


def kandinsky(
    rope: RoPE, _: Any, shape: Any, pos: Any, scale_factor: Sequence[float] = (1.0, 1.0, 1.0)
) -> torch.Tensor:
    return _scaled_grid(rope, pos, scale_factor).expand(shape[0], *[-1] * 7)


def kandinsky6(
    rope: RoPE, _: Any, pos: Any, scale_factor: Sequence[float] = (1.0, 1.0, 1.0)
) -> torch.Tensor:
    return _scaled_grid(rope, pos, scale_factor)[0]


def _scaled_grid(rope: RoPE, pos: Any, scale_factor: Sequence[float]) -> torch.Tensor:
    lines = [
        line if scale == 1 else line / scale for line, scale in zip(pos, scale_factor, strict=True)
    ]
    if len({line.dtype for line in lines}) > 1:
        lines = [line.float() for line in lines]
    tables = [t.view(*map(len, lines), -1) for t in on_grid(rope, lines)]
    return matrices(*tables)[None].unsqueeze(-4)
