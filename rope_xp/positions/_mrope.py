"""Text, images and videos in one sequence: positions of several components."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Device, Namespace
from rope_xp.positions import _values as values


def mrope(
    spans: Sequence[int | Sequence[int]],
    *,
    start: int = 0,
    interval: float = 1.0,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the time, height and width of tokens of text, images and videos in a row.

    Parameters
    ----------
    spans : sequence
        An integer for as many tokens of text; (frames, height, width) for an image or video, in
        merged patches, as the language model sees them. An image has one frame. A single image is
        ``[(1, height, width)]``.
    start : int, default 0
        Position of the first token.
    interval : float, default 1.0
        Positions from one frame to the next, before rounding down: in Qwen2.5-VL
        ``tokens_per_second`` times the seconds of a frame. For all videos here.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (3, tokens)
        int64, in jax int32: components (time, height, width).

    Raises
    ------
    RopeError
        If a span is not positive, or neither an integer nor three of them.

    Notes
    -----
    The tokens of a text have three equal components. Those of an image or video are the cells of
    its grid, counted on from where the text before it ended; what follows starts behind the larger
    of height and width, whatever the frames, as in transformers 5. Wang et al., "Qwen2-VL", arXiv
    2409.12191, section 2.1.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.mrope([2, (1, 2, 2), 1]).tolist()
    [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    """
    numbers.check_positive("interval", interval)
    start = values.index("start", start)
    parts = [np.empty((3, 0), np.int64)]
    for i, span in enumerate(spans):
        if not isinstance(span, Sequence | np.ndarray):
            tokens = values.count(f"spans[{i}]", span)
            parts.append(np.tile(start + np.arange(tokens), (3, 1)))
            start += tokens
            continue
        if len(span) != 3:
            msg = f"spans[{i}] must be a number of tokens or (frames, height, width); got {span!r}"
            raise RopeError(msg)
        cells, after = _of_span((span[0], span[1], span[2]), (interval,), floors=True)
        parts.append(start + cells)
        start += int(after)
    return values.placed(np.concatenate(parts, axis=1), xp, device)


def mrope_from_ids(
    ids: Any,
    grids: Mapping[str, Any],
    config: object,
    *,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the time, height and width of tokens, found by what a processor made of a prompt.

    Parameters
    ----------
    ids : array or sequence, (tokens,) or (batch, tokens)
        Integers: the numbers of tokens, ``input_ids``. On the host, as they are read.
    grids : mapping
        What the processor returned beside them, such as its whole result: ``image_grid_thw`` and
        ``video_grid_thw``, (n, 3) integers, frames, height and width in patches before merging, of
        all images and videos of the batch in their order; ``second_per_grid_ts`` or
        ``video_second_per_grid``, (videos,), for models that count by time; ``attention_mask``,
        like ids, 0 where a sequence is padded; ``mm_token_type_ids``, like ids, where tokens are
        not to be told by their numbers; ``images_per_sample`` for GLM-Image; ``target_sizes``,
        ``target_sizes_videos`` and, if the call has its own, ``downsample_mode`` for MiniCPM-V 4.7.
        Each may be missing.
    config : dict, path or object with ``to_dict()``
        The whole configuration of the model, as for :func:`rope_xp.from_hf_config`.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (3, tokens) or (3, batch, tokens)
        int64, in jax int32: components (time, height, width); 0 where a sequence is padded, or as
        the model has it. float32 for Qwen3-Omni, whose frames may lie between whole numbers. The
        next token of a sequence is at one more than its largest number. For HunYuan-VL (width,
        height, image), or (token, width, height, image), as many as ``mrope_section`` has.

    Raises
    ------
    RopeConfigError
        If the model counts in another way, or is not known.
    RopeError
        If grids and tokens do not fit each other.

    Notes
    -----
    What ``get_rope_index`` of transformers 5 returns, for all models that have one: those of the
    Qwen-VL, Qwen-Omni, GLM-V, Ernie-VL, Cosmos 3, PaddleOCR-VL and Cohere Compass families,
    GLM-Image, HunYuan-VL and MiniCPM-V 4.7. Where Qwen-Omni's ids have sound among the tokens of a
    video, it is counted as that of the video; its tokens say how long it is.

    Examples
    --------
    Two tokens of text, an image of 2 x 2 merged patches, and text:

    >>> from rope_xp import positions
    >>> config = {
    ...     "model_type": "qwen2_vl",
    ...     "image_token_id": 9,
    ...     "vision_config": {"spatial_merge_size": 2},
    ... }
    >>> ids = [5, 6, 9, 9, 9, 9, 7]
    >>> positions.mrope_from_ids(ids, {"image_grid_thw": [[1, 4, 4]]}, config).tolist()
    [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    """
    from rope_xp.hf import (  # which most programs never ask for
        _canvas,
        _counting,
        _ordinals,
        _spans,
    )

    name, keys = _counting.part(config)
    own_ids = values.on_host("ids", ids)
    shape = own_ids.shape
    if len(shape) not in (1, 2):
        raise RopeError(f"ids must be (tokens,) or (batch, tokens); got shape {shape}")
    alone = {"hunyuan_vl": _ordinals.Counter, "minicpmv4_7": _canvas.Counter}.get(name)
    counted: Any = _counting.rule(name, keys) if alone is None else alone(keys, grids)
    kinds = grids.get("mm_token_type_ids")
    if kinds is None:
        kinds = _spans.types(own_ids, counted)
    mask = grids.get("attention_mask")
    mask = np.ones(shape, bool) if mask is None else values.on_host("attention_mask", mask) != 0
    kinds = values.on_host("mm_token_type_ids", kinds)
    if kinds.shape != shape or mask.shape != shape:
        msg = (
            f"mm_token_type_ids and attention_mask must have the shape of ids, {shape}; got "
            f"{kinds.shape} and {mask.shape}"
        )
        raise RopeError(msg)
    if alone is not None:
        found = np.zeros((counted.components, *shape), np.int64)
        for row in np.ndindex(shape[:-1]):
            here = (slice(None), *row, mask[row])
            found[here] = counted.row(own_ids[row][mask[row]], kinds[row][mask[row]])
        counted.check_all_taken()
        return values.placed(found, xp, device)
    found = np.full((3, *shape), counted.padding, np.int64 if counted.floors else np.float32)
    rows = list(np.ndindex(shape[:-1]))
    each_row = _spans.by_row(grids, counted, len(rows))
    for row, handed_out in zip(rows, each_row, strict=True):
        spans = _spans.spans(kinds[row][mask[row]], handed_out)
        found[(slice(None), *row, mask[row])] = _counted(spans, counted, found.dtype)
    for handed_out in each_row:
        handed_out.check_all_taken()
    return values.placed(found, xp, device)


def _counted(spans: Any, counted: Any, dtype: np.dtype) -> np.ndarray:
    """Return positions of the spans of a sequence, (3, tokens)."""
    from rope_xp.hf._sound import woven

    own = [np.empty((3, 0), dtype)]
    start: Any = 0
    for span in spans:
        cells, after = _of_span(span.tokens, span.interval, counted.floors)
        # Each sum is rounded, as transformers adds.
        placed = [(start + cells).astype(dtype)]
        if span.sound:
            placed = woven(placed[0], span.sound, counted.chunk)
        own += placed
        start = placed[-1].max() + 1 if counted.by_time else start + after
    return np.concatenate(own, axis=1)


def _of_span(
    tokens: int | tuple[int, int, int], interval: tuple[float, ...], floors: bool
) -> tuple[np.ndarray, int]:
    """Return cells of a span from 0, and how many positions it takes without regard to frames."""
    if isinstance(tokens, int):
        return np.tile(np.arange(tokens), (3, 1)), tokens
    frames, height, width = tokens
    cells = values.cells(frames=frames, height=height, width=width)
    time = cells[0].astype(np.float32)
    for factor in interval:  # in float32, as transformers multiplies: 3 * (25 * 2 / 3) is 50 there
        time = time * np.float32(factor)
    if floors:
        cells[0] = np.floor(time)
        return cells, max(height, width)
    return np.concatenate([time[None], cells[1:].astype(np.float32)]), max(height, width)
