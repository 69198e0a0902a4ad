"""Rows, columns and frames of images and videos, and the tokens beside them."""

from collections.abc import Sequence

import numpy as np

from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Device, Namespace
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
    """Return the row and column of each patch of a picture, row by row.

    Parameters
    ----------
    height, width : int
        Patches.
    start, step, centre
        As for :func:`video`, of two axes.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (2, height * width)
        int64, in jax int32: components (row, column), for a RoPE with ``position_axes``. Floats as
        :func:`video` has them.

    Raises
    ------
    RopeError
        As :func:`video`.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.grid(2, 3).tolist()
    [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    >>> positions.grid(2, 2, start=-0.5, step=(1, 0.5)).tolist()  # (i + 0.5) / n of 1 and 2, less 1
    [[-0.5, -0.5, 0.5, 0.5], [-0.5, 0.0, -0.5, 0.0]]
    """
    lengths = {"height": height, "width": width}
    return values.placed(_lattice(lengths, start, step, (centre, centre)), xp, device)


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
        Patches. A picture among them has one frame.
    start : number or three, default 0
        Position of the first patch, along each axis.
    step : number or three, default 1
        From one patch to the next. A frame rate is ``(base_fps / fps, 1, 1)``, a grid that is
        stretched to another ``(1, rows / height, columns / width)``.
    centre : bool, default False
        Whether rows and columns are counted from the middle, ``n - n // 2`` of n below 0, as
        Qwen-Image has them. Frames are not.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (3, frames * height * width)
        int64, in jax int32: components (frame, row, column), for a RoPE with ``position_axes``.
        Where a start or step is no integer: float64, of other libraries than numpy float32.

    Raises
    ------
    RopeError
        If a size is not positive, or start or step no finite number, or neither one nor three.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.video(2, 1, 2).tolist()
    [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]]
    >>> positions.video(1, 2, 3, start=(7, 0, 0), centre=True).tolist()
    [[7, 7, 7, 7, 7, 7], [-1, -1, -1, 0, 0, 0], [-2, -1, 0, -2, -1, 0]]
    """
    lengths = {"frames": frames, "height": height, "width": width}
    return values.placed(_lattice(lengths, start, step, (False, centre, centre)), xp, device)


def text(
    tokens: int,
    components: int,
    *,
    start: values.Numbers = 0,
    along: Sequence[int] | None = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return positions of tokens that are no patches: text beside an image, or class tokens.

    Parameters
    ----------
    tokens : int
        None or more.
    components : int
        Of a position, as the patches beside them have.
    start : number or one for each component, default 0
        Position of the first token.
    along : sequence of int, optional
        The components that count tokens; the others stay at ``start``. None: all. Empty: none, as
        for class tokens and registers, which position 0 leaves unrotated.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (components, tokens)
        Of the dtypes of :func:`video`. Join it with others by numpy's or the library's
        ``concatenate`` along the last axis.

    Raises
    ------
    RopeError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import positions
    >>> positions.text(3, 2, start=(1, 0), along=(0,)).tolist()
    [[1, 2, 3], [0, 0, 0]]
    >>> class_token, patches = positions.text(1, 2, along=()), positions.grid(1, 2)
    >>> np.concatenate([class_token, patches], axis=1).tolist()
    [[0, 0, 0], [0, 0, 1]]
    """
    tokens = values.count("tokens", tokens, 0)
    components = values.count("components", components)
    counting = range(components) if along is None else along
    moves = np.zeros((components, 1), np.int64)
    for axis in counting:
        if not 0 <= values.index("along", axis) < components:
            msg = f"along names component {axis}; a position has {components}, counted from 0"
            raise RopeError(msg)
        moves[axis] = 1
    firsts = np.array(values.each("start", start, components))[:, None]
    return values.placed(firsts + moves * np.arange(tokens), xp, device)


def _lattice(
    lengths: dict[str, int], start: values.Numbers, step: values.Numbers, centred: tuple[bool, ...]
) -> np.ndarray:
    cells = values.cells(**lengths)
    middle = [
        (length - length // 2) if centre else 0
        for length, centre in zip(lengths.values(), centred, strict=True)
    ]
    firsts, steps = (
        np.array(values.each(name, given, len(lengths)))[:, None]
        for name, given in (("start", start), ("step", step))
    )
    return np.asarray(firsts + steps * (cells - np.array(middle)[:, None]))
