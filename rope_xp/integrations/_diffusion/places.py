"""How diffusion transformers number their patches and the text beside them.

Each function takes the lengths of a ``Grid``, in patches, and returns numpy's positions
(components, tokens) in the order in which the tokens of the model's attention lie.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rope_xp import positions
from rope_xp._contract.errors import RopeError


class Grid(NamedTuple):
    """What the tokens of a call are."""

    frames: int
    height: int
    width: int
    text: int
    fps: float | None
    """Frames a second, None for an image."""


Place: TypeAlias = Callable[[Grid, Mapping[str, Any]], np.ndarray]
"""From a grid and a configuration, of which all keys are there, to positions."""


def flux(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Text at 0, and then the image, in frame 0."""
    return _joined(positions.text(grid.text, 3, along=()), _video(grid))


def flux2(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Four components, of which the last counts the text, which comes first."""
    text = positions.text(grid.text, 4, along=(3,))
    image = _video(grid)
    return _joined(text, np.concatenate([image, np.zeros_like(image[:1])]))


def ovis(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Text along the diagonal, and then the image, over it."""
    return _joined(positions.text(grid.text, 3, along=(1, 2)), _video(grid))


def longcat(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Text along the diagonal, and then the image, in frame 1 behind 512 tokens of text."""
    return _joined(positions.text(grid.text, 3, along=(1, 2)), _video(grid, (1, 512, 512)))


def qwen(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Text first, which goes on from the larger half of the image, whose middle is 0."""
    after = max(grid.height // 2, grid.width // 2)
    image = positions.video(grid.frames, grid.height, grid.width, centre=True)
    return _joined(positions.text(grid.text, 3, start=after), image)


def z_image(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Put the image in the frame behind the text, which follows it, a frame a token from 1 on."""
    text = positions.text(grid.text, 3, start=(1, 0, 0), along=(0,))
    return _joined(_video(grid, (grid.text + 1, 0, 0)), text)


def lumina2(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Text, a frame a token, and then the image, in the frame behind it."""
    text = positions.text(grid.text, 3, along=(0,))
    return _joined(text, _video(grid, (grid.text, 0, 0)))


def hidream(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Put the image in frame 0, and then text at 0."""
    return _joined(_video(grid), positions.text(grid.text, 3, along=()))


def joyimage(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Put the image first, and then text from behind its largest position."""
    after = max(grid.frames, grid.height, grid.width)
    return _joined(_video(grid), positions.text(grid.text, 3, start=after))


def video(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Frame, row and column alone; text is not rotated."""
    _no_text(grid)
    return _video(grid)


def picture(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Row and column alone."""
    _no_text(grid)
    _no_frames(grid)
    rows, columns = positions.grid(grid.height, grid.width)
    return np.stack([rows, columns])


def either(grid: Grid, config: Mapping[str, Any]) -> np.ndarray:
    """Take a picture where the head has two sections, a video where it has three."""
    return (picture if len(config["rope_axes_dim"]) == 2 else video)(grid, config)


def chronoedit(grid: Grid, config: Mapping[str, Any]) -> np.ndarray:
    """As a video, but two frames are the first and the last of a span."""
    _no_text(grid)
    step = config["rope_temporal_skip_len"] - 1 if grid.frames == 2 else 1
    return _video(grid, step=(step, 1, 1))


def cosmos(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """As a video, in frames of 1/24 s."""
    _no_text(grid)
    step = 1 if grid.fps is None else 24 / grid.fps
    return _video(grid, step=(step, 1, 1))


def cogview4(grid: Grid, config: Mapping[str, Any]) -> np.ndarray:
    """Rows and columns of a grid stretched to another, rounded down."""
    _no_text(grid)
    _no_frames(grid)
    rows, columns = config["rope_axes_dim"]
    row, column = positions.grid(grid.height, grid.width)
    return np.stack([row * rows // grid.height, column * columns // grid.width])


def cogvideox(grid: Grid, config: Mapping[str, Any]) -> np.ndarray:
    """As a video in 1.5, and in 1.0 stretched to the grid of training, with its shape kept."""
    if config.get("patch_size_t") is not None:
        return video(grid, config)
    patch = config["patch_size"]
    return _cropped(grid, config["sample_height"] // patch, config["sample_width"] // patch)


def easyanimate(grid: Grid, config: Mapping[str, Any]) -> np.ndarray:
    """As CogVideoX 1.0, whatever the size of training."""
    patch = config["patch_size"] or 2
    return _cropped(grid, 60 // patch, 90 // patch)


def line(grid: Grid, _: Mapping[str, Any]) -> np.ndarray:
    """Of sound: one position a token, ``width`` of them."""
    _no_text(grid)
    if (grid.frames, grid.height) != (1, 1):
        raise RopeError("this model has one axis, width; leave frames out, and height at 1")
    return np.arange(grid.width)


def _cropped(grid: Grid, rows: int, columns: int) -> np.ndarray:
    _no_text(grid)
    if grid.height / grid.width > rows / columns:
        height, width = rows, round(rows / grid.height * grid.width)
    else:
        height, width = round(columns / grid.width * grid.height), columns
    top, left = round((rows - height) / 2.0), round((columns - width) / 2.0)
    lines = [
        np.arange(grid.frames, dtype=np.float64),
        _spaced(top, top + height, grid.height),
        _spaced(left, left + width, grid.width),
    ]
    return np.stack([axis.ravel() for axis in np.meshgrid(*lines, indexing="ij")])


def _spaced(first: int, end: int, n: int) -> np.ndarray:
    # From the first to one step of end / n before the end, which is what the models do where first
    # is 0; their step is another else.
    return np.linspace(first, end * (n - 1) / n, n)


def _video(
    grid: Grid,
    start: tuple[int, int, int] = (0, 0, 0),
    step: tuple[float, float, float] = (1, 1, 1),
) -> np.ndarray:
    lengths = grid.frames, grid.height, grid.width
    found: np.ndarray = positions.video(*lengths, start=start, step=step)
    return found


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=1)


def _no_text(grid: Grid) -> None:
    if grid.text:
        raise RopeError(f"text = {grid.text}: this model does not rotate its text; leave text out")


def _no_frames(grid: Grid) -> None:
    if grid.frames != 1:
        raise RopeError(f"frames = {grid.frames}: this model has rows and columns alone")
