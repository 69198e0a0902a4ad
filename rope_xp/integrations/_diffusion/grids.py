"""Positions of the tokens of diffusion transformers, along each axis of a grid and of the text.

The grid holds the patches in the order of the model's attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rope_xp._core.errors import RopeError

Config: TypeAlias = Mapping[str, Any]


class Grid(NamedTuple):
    """The size of an image or video in patches, and the length of its text."""

    frames: int
    height: int
    width: int
    text: int = 0
    fps: float | None = None  # of an image
    arange: Callable[[int], Any] = np.arange  # or torch's with a device


Lines: TypeAlias = Callable[[Grid, Config], list[Any]]  # the positions along each axis


class Text(NamedTuple):
    """The positions of text tokens."""

    along: tuple[int, ...] | None = ()  # the components that count the tokens; None: all
    start: Callable[[Grid], int] | int | tuple[int, ...] = 0
    first: bool = True  # the text precedes the image in the sequence


def half_size(grid: Grid) -> int:
    """Return the first position of Qwen-Image's text, which continues the centred image."""
    return max(grid.height, grid.width) // 2


def video(grid: Grid, _: Config, start: Sequence[int] = (0, 0, 0), step: float = 1) -> list[Any]:
    """Return frames, a step apart, rows and columns, each from its start."""
    frames, *others = (grid.arange(n) for n in grid[:3])
    lines = frames if step == 1 else frames * step, *others
    return [line + first for line, first in zip(lines, start, strict=True)]


def image(grid: Grid, config: Config) -> list[Any]:
    if grid.frames != 1:
        raise RopeError(f"frames = {grid.frames}: this model has only rows and columns")
    return video(grid, config)[1:]


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
    return _stretch_video(grid, height // patch, width // patch)


def easyanimate(grid: Grid, config: Config) -> list[Any]:
    """Return a video stretched as in CogVideoX 1.0, to one size for all models."""
    patch = config.get("patch_size") or 2
    return _stretch_video(grid, 60 // patch, 90 // patch)


def sound(grid: Grid, _: Config) -> list[Any]:
    if (grid.frames, grid.height) != (1, 1):
        raise RopeError("this model has one axis, width; leave frames out, and height at 1")
    return [grid.arange(grid.width)]


def _stretch_video(grid: Grid, rows: int, columns: int) -> list[Any]:
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
