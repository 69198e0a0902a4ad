"""Positions of patches of images and videos, and of text in the same sequence."""

from collections.abc import Sequence

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp.positions import _values as values


def grid(
    height: int,
    width: int,
    *,
    start: values.Numbers = 0,
    step: values.Numbers = 1,
    centre: bool = False,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the row and column of each patch of an image, row by row.

    Like :func:`video`, with two axes: an array (2, height * width) of components (row, column).

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.grid(2, 3).tolist()
    [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    >>> positions.grid(2, 2, start=-0.5, step=(1, 0.5)).tolist()  # centres of patches
    [[-0.5, -0.5, 0.5, 0.5], [-0.5, 0.0, -0.5, 0.0]]
    """
    lengths = {"height": height, "width": width}
    return values.to_library(_place_patches(lengths, start, step, centre), xp, device)


def video(
    frames: int,
    height: int,
    width: int,
    *,
    start: values.Numbers = 0,
    step: values.Numbers = 1,
    centre: bool = False,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the frame, row and column of each patch of a video, frame by frame.

    Parameters
    ----------
    frames, height, width : int
        Patches. An image has one frame.
    start : number or three, default 0
        Position of the first patch along each axis.
    step : number or three, default 1
        Distance between patches: ``(base_fps / fps, 1, 1)`` for another frame rate, ``(1, rows /
        height, columns / width)`` for a grid stretched to another size.
    centre : bool, default False
        Whether ``n - n // 2`` of n rows and columns are below 0, as in Qwen-Image.
    xp, device : optional
        Library and device of the result. Default: numpy.

    Returns
    -------
    array, (3, frames * height * width)
        Components (frame, row, column), for a RoPE with ``position_axes``. If start or step is not
        an integer: float64, in libraries other than numpy float32.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.video(1, 2, 3, start=(7, 0, 0), centre=True).tolist()
    [[7, 7, 7, 7, 7, 7], [-1, -1, -1, 0, 0, 0], [-2, -1, 0, -2, -1, 0]]
    """
    lengths = {"frames": frames, "height": height, "width": width}
    return values.to_library(_place_patches(lengths, start, step, centre), xp, device)


def _place_patches(
    lengths: dict[str, int], start: values.Numbers, step: values.Numbers, centre: bool
) -> np.ndarray:
    cells = values.index_cells(**lengths)
    origin = [n - n // 2 if centre and axis != "frames" else 0 for axis, n in lengths.items()]
    starts = values.per_axis("start", start, len(lengths))
    steps = values.per_axis("step", step, len(lengths))
    return np.asarray(starts + steps * (cells - np.array(origin)[:, None]))


def text(
    tokens: int,
    components: int,
    *,
    start: values.Numbers = 0,
    along: Sequence[int] | None = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return positions of tokens that are not patches, such as text or class tokens.

    Parameters
    ----------
    tokens : int
        Number of tokens, 0 or more.
    components : int
        Components of a position, as many as the patches have.
    start : number or one for each component, default 0
        Position of the first token.
    along : sequence of int, optional
        Components that count tokens; the others stay at ``start``. Default: all. Pass an empty one
        for class tokens and registers, which stay at position 0 and are not rotated.
    xp, device
        As for :func:`video`.

    Returns
    -------
    array, (components, tokens)
        With the dtypes of :func:`video`. Concatenate it with others along the last axis.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.text(3, 2, start=(1, 0), along=(0,)).tolist()
    [[1, 2, 3], [0, 0, 0]]
    """
    tokens = values.check_count("tokens", tokens, 0)
    components = values.check_count("components", components)
    steps = np.zeros((components, 1), np.int64)
    for axis in range(components) if along is None else along:
        if not 0 <= values.to_int("along", axis) < components:
            raise RopeError(f"along holds component {axis}; it must be from 0 to {components - 1}")
        steps[axis] = 1
    starts = values.per_axis("start", start, components)
    return values.to_library(starts + steps * np.arange(tokens), xp, device)
