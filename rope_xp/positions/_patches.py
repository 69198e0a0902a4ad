"""Positions of patches of images and videos, and of text in the same sequence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rope_xp._core import numbers
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


def mrope(
    spans: Sequence[int | Sequence[int]],
    *,
    start: int = 0,
    interval: float = 1.0,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the time, height and width of tokens of text, images and videos in one sequence.

    Text tokens have three equal components. An image or video has the cells of its grid, starting
    at the next position after the text. The next span starts after the larger of height and width,
    regardless of the number of frames, as in transformers 5. Wang et al., "Qwen2-VL", arXiv
    2409.12191, section 2.1.

    Parameters
    ----------
    spans : sequence
        A number of text tokens, or (frames, height, width) of an image or video, in merged patches.
        An image has one frame.
    start : int, default 0
        Position of the first token.
    interval : float, default 1.0
        Distance between frames of all videos, before rounding down. Qwen2.5-VL has
        ``tokens_per_second`` times the seconds per frame.
    xp, device
        As for :func:`video`.

    Returns
    -------
    array, (3, tokens)
        Components (time, height, width).

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.mrope([2, (1, 2, 2), 1]).tolist()
    [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    """
    numbers.check_positive("interval", interval)
    start = values.to_int("start", start)
    parts = [np.empty((3, 0), np.int64)]
    for i, span in enumerate(spans):
        if not isinstance(span, Sequence | np.ndarray):
            shape: int | tuple[int, ...] = values.check_count(f"spans[{i}]", span)
        elif len(span) == 3:
            shape = tuple(span)
        else:
            msg = f"spans[{i}] must be a number of tokens or (frames, height, width); got {span!r}"
            raise RopeError(msg)
        cells, length = values.index_span(shape, (interval,))
        parts.append(start + cells)
        start += length
    return values.to_library(np.concatenate(parts, axis=1), xp, device)


def mrope_from_ids(
    ids: Any,
    grids: Mapping[str, Any],
    config: object,
    *,
    cu_seqlens: Any = None,
    segments: Any = None,
    deltas: bool = False,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array | tuple[Array, Array]:
    """Return the time, height and width of tokens, from the output of a processor.

    Equal to ``get_rope_index`` of transformers 5 for all models that have it: the Qwen-VL,
    Qwen-Omni, GLM-V, Ernie-VL, Cosmos 3, PaddleOCR-VL and Cohere Compass families, GLM-Image,
    HunYuan-VL and MiniCPM-V 4.7. Audio among the tokens of a Qwen-Omni video belongs to the video.
    Raises RopeError if grids and tokens do not match, and RopeConfigError for other models.

    Parameters
    ----------
    ids : array or sequence, (tokens,) or (batch, tokens)
        Integers in host memory: token ids, ``input_ids``.
    grids : mapping
        The output of the processor. These entries are read: ``image_grid_thw`` and
        ``video_grid_thw``, (n, 3) integers: frames, height and width in patches before merging, for
        all images and videos of the batch in order; ``second_per_grid_ts`` or
        ``video_second_per_grid``, (videos,), for models that count time; ``attention_mask``, like
        ids, 0 for padding; ``mm_token_type_ids``, like ids, if token ids do not determine the
        types; ``images_per_sample`` for GLM-Image; ``target_sizes``, ``target_sizes_videos`` and
        ``downsample_mode`` for MiniCPM-V 4.7.
    config : dict, path or object with ``to_dict()``
        The whole configuration of the model, as in :func:`rope_xp.from_hf_config`.
    cu_seqlens : array or sequence, (sequences + 1,), optional
        In host memory: packed sequences in ids (tokens,) or (1, tokens), as in :func:`packed`. Each
        gets the positions that it has alone; ``images_per_sample`` counts those of each.
    segments : array or sequence, like ids, optional
        In host memory: the same, by a number for each sequence, as in :func:`from_segments`.
    deltas : bool, default False
        Whether to return them, too.
    xp, device
        As for :func:`video`.

    Returns
    -------
    array, (3, tokens) or (3, batch, tokens)
        Components (time, height, width); padding is 0 or as in the model. float32 for
        Qwen3-Omni, whose frames may have fractional positions. The next token of a sequence has
        its largest position plus one. HunYuan-VL has as many components as ``mrope_section``:
        (width, height, image) or (token, width, height, image).
    deltas : array, (batch,), (sequences,) or ()
        With ``deltas=True``: of each sequence, its next position minus the number of its tokens
        without padding. A text token behind n others has position n + delta in all components.

    Examples
    --------
    >>> from rope_xp import positions
    >>> config = {"model_type": "qwen2_vl", "image_token_id": 9}
    >>> config["vision_config"] = {"spatial_merge_size": 2}
    >>> image = {"image_grid_thw": [[1, 4, 4]]}  # 2 by 2 merged patches
    >>> positions.mrope_from_ids([5, 6, 9, 9, 9, 9, 7], image, config).tolist()
    [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    """
    from rope_xp.positions import _rope_index  # few programs need it

    found = _rope_index.get_rope_index(ids, grids, config, cu_seqlens, segments)
    at, counted = (values.to_library(x, xp, device) for x in found)
    return (at, counted) if deltas else at
