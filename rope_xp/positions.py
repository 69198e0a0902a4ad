"""Positions of common arrangements of tokens. Optional: any integers or floats are positions.

``packed``, ``offsets``, and ``zigzag`` of packed sequences, take and return arrays of any library,
and run under its compilers. The others are made of Python numbers alone, in numpy unless ``xp``
names another library.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import read
from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Device, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

__all__ = ["grid", "mrope", "mrope_from_ids", "offsets", "packed", "text", "video", "zigzag"]

Numbers: TypeAlias = float | Sequence[float]
"""One for all axes, or one for each."""


def packed(cu_seqlens: Any, *, total: int | None = None) -> Array:
    """Return positions of sequences that lie one after the other, each counted from 0.

    Parameters
    ----------
    cu_seqlens : array or sequence, (sequences + 1,)
        Integers, in tokens: 0, then where each sequence ends, as flash-attention's functions for
        sequences of different lengths take them.
    total : int, optional
        Tokens in all, ``cu_seqlens[-1]`` or more. Needed under a compiler, which does not know
        values; on a GPU it saves waiting for one. Tokens beyond the last sequence are counted from
        0 too.

    Returns
    -------
    array, (total,)
        Of the library and device of cu_seqlens, signed and of 32 bits at least; numpy for Python
        numbers.

    Raises
    ------
    RopeError
        If cu_seqlens is not one-dimensional and integer, or total is missing under a compiler; if
        cu_seqlens is in numpy and does not start with 0, decreases, or exceeds total.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.packed([0, 3, 7]).tolist()
    [0, 1, 2, 0, 1, 2, 3]
    """
    backend, ends = _ends(cu_seqlens)
    known = isinstance(ends, np.ndarray)
    total = _total(ends) if total is None else _count("total", total, 0)
    if known and total < ends[-1]:
        raise RopeError(f"total = {total} is less than cu_seqlens[-1] = {ends[-1]}")
    xp = backend.xp
    tokens = xp.arange(total, dtype=ends.dtype, device=backend.device(ends))
    sequence = xp.searchsorted(ends[1:], tokens, side="right")
    return tokens - xp.take(ends, sequence, axis=0)


def _ends(cu_seqlens: Any) -> tuple[Backend, Array]:
    """Return where packed sequences end, checked as far as it can be read."""
    backend, ends = _integers("cu_seqlens", cu_seqlens)
    if ends.shape[0] == 0:
        raise RopeError("cu_seqlens is empty; it starts with 0")
    if isinstance(ends, np.ndarray) and (ends[0] != 0 or (ends[1:] < ends[:-1]).any()):
        raise RopeError(f"cu_seqlens must start with 0 and not decrease; got {ends}")
    return backend, ends


def _total(ends: Array) -> int:
    try:
        return int(ends[-1])
    except (TypeError, ValueError) as error:  # jax's and ndonnx's, of a value that is not there yet
        msg = f"cu_seqlens has no values yet; give the number of tokens as total= ({error})"
        raise RopeError(msg.partition("\n")[0]) from error


def offsets(lengths: Any, new_tokens: int = 1) -> Array:
    """Return positions of new tokens behind those that each sequence of a batch has already.

    Parameters
    ----------
    lengths : array or sequence, (batch,)
        Integers: tokens that are in the cache of each sequence.
    new_tokens : int, default 1
        Tokens to come, alike for all sequences.

    Returns
    -------
    array, (batch, new_tokens)
        Of the library and device of lengths, signed and of 32 bits at least; numpy for Python
        numbers.

    Raises
    ------
    RopeError
        If lengths is not one-dimensional and integer, or new_tokens is not positive.

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.offsets([17, 4], new_tokens=2).tolist()
    [[17, 18], [4, 5]]
    """
    backend, lengths = _integers("lengths", lengths)
    new_tokens = _count("new_tokens", new_tokens)
    device = backend.device(lengths)
    steps = backend.xp.arange(new_tokens, dtype=lengths.dtype, device=device)
    return lengths[:, None] + steps[None, :]


def grid(
    height: int,
    width: int,
    *,
    start: Numbers = 0,
    step: Numbers = 1,
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
    return _placed(_lattice(lengths, start, step, (centre, centre)), xp, device)


def video(
    frames: int,
    height: int,
    width: int,
    *,
    start: Numbers = 0,
    step: Numbers = 1,
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
    return _placed(_lattice(lengths, start, step, (False, centre, centre)), xp, device)


def text(
    tokens: int,
    components: int,
    *,
    start: Numbers = 0,
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
    tokens = _count("tokens", tokens, 0)
    components = _count("components", components)
    counting = range(components) if along is None else along
    moves = np.zeros((components, 1), np.int64)
    for axis in counting:
        if not 0 <= _index("along", axis) < components:
            msg = f"along names component {axis}; a position has {components}, counted from 0"
            raise RopeError(msg)
        moves[axis] = 1
    firsts = np.array(_each("start", start, components))[:, None]
    return _placed(firsts + moves * np.arange(tokens), xp, device)


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
    start = _index("start", start)
    parts = [np.empty((3, 0), np.int64)]
    for i, span in enumerate(spans):
        if not isinstance(span, Sequence | np.ndarray):
            tokens = _count(f"spans[{i}]", span)
            parts.append(np.tile(start + np.arange(tokens), (3, 1)))
            start += tokens
            continue
        if len(span) != 3:
            msg = f"spans[{i}] must be a number of tokens or (frames, height, width); got {span!r}"
            raise RopeError(msg)
        cells, after = _of_span((span[0], span[1], span[2]), (interval,), floors=True)
        parts.append(start + cells)
        start += int(after)
    return _placed(np.concatenate(parts, axis=1), xp, device)


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
    own_ids = _on_host("ids", ids)
    shape = own_ids.shape
    if len(shape) not in (1, 2):
        raise RopeError(f"ids must be (tokens,) or (batch, tokens); got shape {shape}")
    alone = {"hunyuan_vl": _ordinals.Counter, "minicpmv4_7": _canvas.Counter}.get(name)
    counted: Any = _counting.rule(name, keys) if alone is None else alone(keys, grids)
    kinds = grids.get("mm_token_type_ids")
    if kinds is None:
        kinds = _spans.types(own_ids, counted)
    mask = grids.get("attention_mask")
    mask = np.ones(shape, bool) if mask is None else _on_host("attention_mask", mask) != 0
    kinds = _on_host("mm_token_type_ids", kinds)
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
        return _placed(found, xp, device)
    found = np.full((3, *shape), counted.padding, np.int64 if counted.floors else np.float32)
    rows = list(np.ndindex(shape[:-1]))
    each_row = _spans.by_row(grids, counted, len(rows))
    for row, handed_out in zip(rows, each_row, strict=True):
        spans = _spans.spans(kinds[row][mask[row]], handed_out)
        found[(slice(None), *row, mask[row])] = _counted(spans, counted, found.dtype)
    for handed_out in each_row:
        handed_out.check_all_taken()
    return _placed(found, xp, device)


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
    cells = _cells(frames=frames, height=height, width=width)
    time = cells[0].astype(np.float32)
    for factor in interval:  # in float32, as transformers multiplies: 3 * (25 * 2 / 3) is 50 there
        time = time * np.float32(factor)
    if floors:
        cells[0] = np.floor(time)
        return cells, max(height, width)
    return np.concatenate([time[None], cells[1:].astype(np.float32)]), max(height, width)


def zigzag(
    tokens: int | None = None,
    shards: int = 0,
    *,
    cu_seqlens: Any = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Array:
    """Return which tokens each of several devices holds, so that causal attention loads all alike.

    A sequence is cut into ``2 * shards`` chunks; device i holds chunk i from the front and chunk
    i from the back. With ``cu_seqlens`` each of the packed sequences is cut so, and a device holds
    its chunks of all of them, one sequence after the other.

    Parameters
    ----------
    tokens : int, optional
        In all, a multiple of ``2 * shards``. With cu_seqlens it is asked only under a compiler,
        which does not know values.
    shards : int
        Devices.
    cu_seqlens : array or sequence, (sequences + 1,), optional
        Integers, as for :func:`packed`; the length of each sequence is a multiple of
        ``2 * shards``, as it is after padding.
    xp, device : optional
        Library and device of the result; numpy by default, and those of cu_seqlens where that is
        on a device.

    Returns
    -------
    array, (shards, tokens / shards)
        int64, in jax int32: row i holds the tokens of device i, in its order. Without cu_seqlens
        they are the positions too; with them, those are ``packed(cu_seqlens)[row]``.

    Raises
    ------
    RopeError
        If a number is not positive, or tokens do not divide evenly; for cu_seqlens as
        :func:`packed`.

    Notes
    -----
    The split of Megatron's context parallelism, and of Transformer Engine's for packed sequences
    ("thd").

    Examples
    --------
    >>> from rope_xp import positions
    >>> positions.zigzag(8, 2).tolist()
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> tokens = positions.zigzag(cu_seqlens=[0, 4, 12], shards=2)
    >>> tokens.tolist()
    [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    >>> positions.packed([0, 4, 12])[tokens[0]].tolist()
    [0, 3, 0, 1, 6, 7]
    """
    shards = _count("shards", shards)
    if cu_seqlens is not None:
        return _zigzag_packed(tokens, shards, cu_seqlens, xp, device)
    if tokens is None:
        raise RopeError("zigzag needs tokens, how many there are in all, or cu_seqlens")
    tokens = _count("tokens", tokens)
    if tokens % (2 * shards):
        msg = f"tokens = {tokens} must be a multiple of 2 * shards = {2 * shards}"
        raise RopeError(msg)
    chunks = np.arange(tokens).reshape(2 * shards, -1)
    return _placed(np.concatenate([chunks[:shards], chunks[: shards - 1 : -1]], axis=1), xp, device)


def _zigzag_packed(
    tokens: int | None, shards: int, cu_seqlens: Any, xp: Namespace | None, device: Device | None
) -> Array:
    backend, ends = _ends(cu_seqlens)
    known = isinstance(ends, np.ndarray)
    if known and (np.diff(ends) % (2 * shards)).any():
        msg = (
            f"each sequence of cu_seqlens must be a multiple of 2 * shards = {2 * shards} long, "
            f"which padding makes it; got lengths {np.diff(ends)}"
        )
        raise RopeError(msg)
    total = _total(ends) if tokens is None else _count("tokens", tokens, 0)
    if total % (2 * shards) or (known and total != ends[-1]):
        msg = (
            f"tokens = {total} must be cu_seqlens[-1], and a multiple of 2 * shards = {2 * shards}"
        )
        raise RopeError(msg)
    made, where = backend.xp, backend.device(ends)
    device_i = made.arange(shards, dtype=ends.dtype, device=where)[:, None]
    slot = made.arange(total // shards, dtype=ends.dtype, device=where)
    # Every device holds the same share of each sequence.
    sequence = made.searchsorted(ends[1:] // shards, slot, side="right")
    start = made.take(ends, sequence, axis=0)
    chunk = (made.take(ends, sequence + 1, axis=0) - start) // (2 * shards)
    within = slot - start // shards
    front = (start + within)[None, :] + device_i * chunk[None, :]
    back = front + ((2 * shards - 2) * chunk)[None, :] - 2 * device_i * chunk[None, :]
    held = made.where((within < chunk)[None, :], front, back)
    if known:
        return _placed(held.astype(np.int64), xp, device)
    if xp is not None or device is not None:
        raise RopeError(
            "cu_seqlens is on a device, where the result is too; leave out xp and device"
        )
    return held


def _on_host(name: str, values: Any) -> np.ndarray:
    """Return integers or truth values as an array of numpy."""
    try:
        host = np.asarray(values)
    except (TypeError, ValueError) as error:
        msg = f"{name} must lie on the host, as it is read, in rows of one length; {error}"
        raise RopeError(msg) from error
    if host.dtype.kind not in "iub":
        raise RopeError(f"{name} must hold integers; got {host.dtype}")
    return host


def _index(name: str, value: Any) -> int:
    """Return an integer, which may be numpy's."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise RopeError(f"{name} must be an integer; got {value!r}") from error


def _count(name: str, value: Any, least: int = 1) -> int:
    count = _index(name, value)
    if count < least:
        raise RopeError(f"{name} must be positive; got {count}")
    return count


def _cells(**sizes: int) -> np.ndarray:
    lengths = tuple(_count(name, size) for name, size in sizes.items())
    return np.indices(lengths).reshape(len(lengths), -1)


def _lattice(
    lengths: dict[str, int], start: Numbers, step: Numbers, centred: tuple[bool, ...]
) -> np.ndarray:
    cells = _cells(**lengths)
    middle = [
        (length - length // 2) if centre else 0
        for length, centre in zip(lengths.values(), centred, strict=True)
    ]
    firsts, steps = (
        np.array(_each(name, values, len(lengths)))[:, None]
        for name, values in (("start", start), ("step", step))
    )
    return np.asarray(firsts + steps * (cells - np.array(middle)[:, None]))


def _each(name: str, values: Numbers, axes: int) -> list[float]:
    """Return a number for each axis, integers as such."""
    found = list(values) if isinstance(values, Sequence | np.ndarray) else [values] * axes
    if len(found) != axes:
        raise RopeError(f"{name} must be one number or {axes}, one for each axis; got {values!r}")
    for value in found:
        if not isinstance(value, int | float | np.number) or not np.isfinite(value):
            raise RopeError(f"{name} must hold finite numbers; got {value!r}")
    return [int(v) if isinstance(v, int | np.integer) else float(v) for v in found]


def _placed(array: np.ndarray, xp: Namespace | None, device: Device | None) -> Array:
    if xp is None:
        if device is not None:
            raise RopeError(f"device = {device!r} needs xp, the library whose device it is")
        return array
    if array.dtype == np.float64:  # which some devices have not
        array = array.astype(np.float32)
    return find.backend_of_namespace(xp).asarray(array, device)


def _integers(name: str, values: Any) -> tuple[Backend, Any]:
    """Return a line of integers as an array, and its backend."""
    backend = read.owner_of(values)
    if backend is None:
        values = np.asarray(values)
        backend = find.backend_of(values, name)
    dtype = backend.dtype_name(values)
    if values.ndim != 1 or not dtype.startswith(("int", "uint")):
        msg = f"{name} must have one axis and integers; got {dtype} of {tuple(values.shape)}"
        raise RopeError(msg)
    return backend, backend.integers(values)
