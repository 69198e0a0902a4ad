"""Positions of text, images and videos in one sequence, as in M-RoPE."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp.positions import _values as values


def mrope(
    spans: Sequence[int | Sequence[int]],
    *,
    start: int = 0,
    interval: float = 1.0,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the time, height and width of tokens of text, images and videos in one sequence.

    Parameters
    ----------
    spans : sequence
        A number of text tokens, or (frames, height, width) of an image or video, in merged patches,
        as the language model sees them. An image has one frame. A single image is
        ``[(1, height, width)]``.
    start : int, default 0
        Position of the first token.
    interval : float, default 1.0
        Distance between frames of all videos, before rounding down: in Qwen2.5-VL
        ``tokens_per_second`` times the seconds per frame.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (3, tokens)
        int64, in jax int32: components (time, height, width).

    Raises
    ------
    RopeError
        If a span is not positive, or neither an integer nor three integers.

    Notes
    -----
    Text tokens have three equal components. The tokens of an image or video are the cells of its
    grid, which starts at the next position after the text. The span behind it starts after the
    larger of height and width, whatever the number of frames, as in transformers 5. Wang et al.,
    "Qwen2-VL", arXiv 2409.12191, section 2.1.

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
        cells, length = _span_cells((span[0], span[1], span[2]), (interval,), floors=True)
        parts.append(start + cells)
        start += int(length)
    return values.to_library(np.concatenate(parts, axis=1), xp, device)


def mrope_from_ids(
    ids: Any,
    grids: Mapping[str, Any],
    config: object,
    *,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return the time, height and width of tokens, from the output of a processor.

    Parameters
    ----------
    ids : array or sequence, (tokens,) or (batch, tokens)
        Integers in host memory: token ids, ``input_ids``.
    grids : mapping
        The other outputs of the processor; its whole result will do. Each may be missing:
        ``image_grid_thw`` and ``video_grid_thw``, (n, 3) integers, frames, height and width in
        patches before merging, of all images and videos of the batch in order;
        ``second_per_grid_ts`` or ``video_second_per_grid``, (videos,), for models that count time;
        ``attention_mask``, like ids, 0 for padding; ``mm_token_type_ids``, like ids, if token ids
        do not tell the types; ``images_per_sample`` for GLM-Image; ``target_sizes``,
        ``target_sizes_videos`` and, if the call has its own, ``downsample_mode`` for MiniCPM-V 4.7.
    config : dict, path or object with ``to_dict()``
        The whole configuration of the model, as in :func:`rope_xp.from_hf_config`.
    xp, device : optional
        Library and device of the result; numpy by default.

    Returns
    -------
    array, (3, tokens) or (3, batch, tokens)
        int64, in jax int32: components (time, height, width); padding is 0, or what the model
        uses. float32 for Qwen3-Omni, whose frames may have fractional positions. The next token of
        a sequence is at its largest position plus one. For HunYuan-VL (width, height, image) or
        (token, width, height, image), as many components as ``mrope_section`` has.

    Raises
    ------
    RopeConfigError
        If the model counts in another way, or is not known.
    RopeError
        If grids and tokens do not match.

    Notes
    -----
    Equal to ``get_rope_index`` of transformers 5, for all models that have it: the Qwen-VL,
    Qwen-Omni, GLM-V, Ernie-VL, Cosmos 3, PaddleOCR-VL and Cohere Compass families, GLM-Image,
    HunYuan-VL and MiniCPM-V 4.7. Sound among the tokens of a Qwen-Omni video counts as the video's
    own, and its tokens give its length.

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
    from rope_xp.hf import _canvas, _counting, _ordinals, _spans  # most programs need none of them

    name, keys = _counting.part(config)
    token_ids = values.on_host("ids", ids)
    shape = token_ids.shape
    if len(shape) not in (1, 2):
        raise RopeError(f"ids must be (tokens,) or (batch, tokens); got shape {shape}")
    special = {"hunyuan_vl": _ordinals.Counter, "minicpmv4_7": _canvas.Counter}.get(name)
    rule: Any = _counting.rule(name, keys) if special is None else special(keys, grids)
    types = grids.get("mm_token_type_ids")
    if types is None:
        types = _spans.types(token_ids, rule)
    mask = grids.get("attention_mask")
    mask = np.ones(shape, bool) if mask is None else values.on_host("attention_mask", mask) != 0
    types = values.on_host("mm_token_type_ids", types)
    if types.shape != shape or mask.shape != shape:
        msg = (
            f"mm_token_type_ids and attention_mask must have the shape of ids, {shape}; got "
            f"{types.shape} and {mask.shape}"
        )
        raise RopeError(msg)
    rows = list(np.ndindex(shape[:-1]))
    if special is not None:
        positions = np.zeros((rule.components, *shape), np.int64)
        for row in rows:
            tokens = mask[row]
            positions[(slice(None), *row, tokens)] = rule.row(
                token_ids[row][tokens], types[row][tokens]
            )
        rule.check_all_taken()
        return values.to_library(positions, xp, device)
    positions = np.full((3, *shape), rule.padding, np.int64 if rule.floors else np.float32)
    grids_of_rows = _spans.by_row(grids, rule, len(rows))
    for row, row_grids in zip(rows, grids_of_rows, strict=True):
        spans = _spans.spans(types[row][mask[row]], row_grids)
        positions[(slice(None), *row, mask[row])] = _join(spans, rule, positions.dtype)
    for row_grids in grids_of_rows:
        row_grids.check_all_taken()
    return values.to_library(positions, xp, device)


def _join(spans: Any, rule: Any, dtype: np.dtype) -> np.ndarray:
    """Return the positions of the spans of a sequence, (3, tokens)."""
    from rope_xp.hf._sound import woven

    parts = [np.empty((3, 0), dtype)]
    start: Any = 0
    for span in spans:
        cells, length = _span_cells(span.tokens, span.interval, rule.floors)
        # Each sum is rounded, as in transformers.
        span_parts = [(start + cells).astype(dtype)]
        if span.sound:
            span_parts = woven(span_parts[0], span.sound, rule.chunk)
        parts += span_parts
        start = span_parts[-1].max() + 1 if rule.by_time else start + length
    return np.concatenate(parts, axis=1)


def _span_cells(
    tokens: int | tuple[int, int, int], interval: tuple[float, ...], floors: bool
) -> tuple[np.ndarray, int]:
    """Return the cells of a span, counted from 0, and the positions it takes, except for frames."""
    if isinstance(tokens, int):
        return np.tile(np.arange(tokens), (3, 1)), tokens
    frames, height, width = tokens
    cells = values.cells(frames=frames, height=height, width=width)
    time = cells[0].astype(np.float32)
    for factor in interval:  # in float32 as in transformers, where 3 * (25 * 2 / 3) is 50
        time = time * np.float32(factor)
    if floors:
        cells[0] = np.floor(time)
        return cells, max(height, width)
    return np.concatenate([time[None], cells[1:].astype(np.float32)]), max(height, width)
