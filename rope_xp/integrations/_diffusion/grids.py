"""Positions of the tokens of diffusion transformers, along each axis of a grid and of the text.

The grid holds the patches in the order of the model's attention.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rope_xp._core.errors import RopeError

Config: TypeAlias = Mapping[str, Any]


class Grid(NamedTuple):
    """The size of an image or video in patches, and the length of the text beside it."""

    frames: int
    height: int
    width: int
    text: int = 0
    fps: float | None = None
    """Frames per second; None for an image."""
    arange: Callable[[int], Any] = np.arange
    """Counts from 0: numpy's, or torch's with a device."""


Lines: TypeAlias = Callable[[Grid, Config], list[Any]]
"""From a grid and a configuration to the positions along each axis."""


class Text(NamedTuple):
    """The positions of text tokens."""

    along: tuple[int, ...] | None = ()
    """The components that count the tokens; None: all of them."""
    start: Callable[[Grid], int] | int | tuple[int, ...] = 0
    first: bool = True
    """Whether the text precedes the image in the sequence."""


def half_size(grid: Grid) -> int:
    """Return the first position of Qwen-Image's text, which continues the centred image."""
    return max(grid.height, grid.width) // 2


def full_size(grid: Grid) -> int:
    """Return the first position of JoyImage's text, which continues the largest axis."""
    return max(grid.frames, grid.height, grid.width)


def video(grid: Grid, _: Config) -> list[Any]:
    return [grid.arange(n) for n in (grid.frames, grid.height, grid.width)]


def image(grid: Grid, config: Config) -> list[Any]:
    if grid.frames != 1:
        raise RopeError(f"frames = {grid.frames}: this model has rows and columns only")
    return video(grid, config)[1:]


def hunyuan_image(grid: Grid, config: Config) -> list[Any]:
    has_frames = len(config.get("rope_axes_dim", (64, 64))) == 3
    return (video if has_frames else image)(grid, config)


def flux2(grid: Grid, config: Config) -> list[Any]:
    """Return four axes; the last one counts text and is 0 for an image."""
    return [*video(grid, config), grid.arange(1)]


def longcat(grid: Grid, config: Config) -> list[Any]:
    """Return frame 1, with rows and columns behind 512 tokens of text."""
    frames, rows, columns = video(grid, config)
    return [frames + 1, rows + 512, columns + 512]


def lumina2(grid: Grid, config: Config) -> list[Any]:
    """Return the frame that follows the text, which has one frame per token."""
    frames, *others = video(grid, config)
    return [frames + grid.text, *others]


def z_image(grid: Grid, config: Config) -> list[Any]:
    """Return the frame that follows the text, which starts at frame 1."""
    frames, *others = lumina2(grid, config)
    return [frames + 1, *others]


def qwen(grid: Grid, config: Config) -> list[Any]:
    """Return rows and columns that are 0 in the middle of the image."""
    frames, rows, columns = video(grid, config)
    return [frames, rows - (grid.height + 1) // 2, columns - (grid.width + 1) // 2]


def chronoedit(grid: Grid, config: Config) -> list[Any]:
    """Return a video, of which two frames are the first and the last of a longer one."""
    frames, *others = video(grid, config)
    step = config.get("rope_temporal_skip_len", 8) - 1 if grid.frames == 2 else 1
    return [frames * step, *others]


def cosmos(grid: Grid, config: Config) -> list[Any]:
    """Return frames in units of 1/24 s."""
    frames, *others = video(grid, config)
    return [frames if grid.fps is None else frames * (24 / grid.fps), *others]


def cogview4(grid: Grid, config: Config) -> list[Any]:
    """Return rows and columns stretched to a fixed size, rounded down."""
    rows, columns = image(grid, config)
    height, width = config.get("rope_axes_dim", (256, 256))
    return [rows * height // grid.height, columns * width // grid.width]


def cogvideox(grid: Grid, config: Config) -> list[Any]:
    """Return a video in version 1.5; version 1.0 stretches it to the size of training."""
    if config.get("patch_size_t") is not None:
        return video(grid, config)
    patch = config.get("patch_size", 2)
    height, width = config.get("sample_height", 60), config.get("sample_width", 90)
    return _stretched(grid, height // patch, width // patch)


def easyanimate(grid: Grid, config: Config) -> list[Any]:
    """Return a video stretched as in CogVideoX 1.0, to one size for all models."""
    patch = config.get("patch_size") or 2
    return _stretched(grid, 60 // patch, 90 // patch)


def sound(grid: Grid, _: Config) -> list[Any]:
    if (grid.frames, grid.height) != (1, 1):
        raise RopeError("this model has one axis, width; leave frames out, and height at 1")
    return [grid.arange(grid.width)]


def _stretched(grid: Grid, rows: int, columns: int) -> list[Any]:
    """Return positions in a grid of training, stretched and centred with its aspect ratio kept."""
    if grid.height / grid.width > rows / columns:
        height, width = rows, round(rows / grid.height * grid.width)
    else:
        height, width = round(columns / grid.width * grid.height), columns
    lines = [grid.arange(grid.frames) * 1.0]
    for n, size, available in ((grid.height, height, rows), (grid.width, width, columns)):
        first = round((available - size) / 2.0)
        # The models end at `end * (n - 1) / n`: steps of size / n only where first is 0.
        last = (first + size) * (n - 1) / n
        lines.append(first + grid.arange(n) * ((last - first) / max(n - 1, 1)))
    return lines
