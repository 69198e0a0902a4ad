"""Positions of M-RoPE from token ids, equal to ``get_rope_index`` of transformers."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.positions._rope_index.canvases import index_hunyuan, index_minicpm
from rope_xp.positions._rope_index.models import OMNI, find_model, find_types, split_runs
from rope_xp.positions._rope_index.spans import index_spans
from rope_xp.positions._sequences import parse_ends
from rope_xp.positions._values import to_host

_INDEXERS = {"hunyuan_vl": index_hunyuan, "minicpmv4_7": index_minicpm}


def get_rope_index(
    ids: Any,
    inputs: Mapping[str, Any],
    config: object,
    cu_seqlens: Any = None,
    segments: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and deltas as :func:`rope_xp.positions.mrope_from_ids` describes them."""
    name, keys = find_model(config)
    token_ids = to_host("ids", ids)
    shape = token_ids.shape
    if len(shape) not in (1, 2):
        raise RopeError(f"ids must be (tokens,) or (batch, tokens); got shape {shape}")
    rows = _split_rows(shape, cu_seqlens) if segments is None else _split_runs(shape, segments)
    is_packed = cu_seqlens is not None or segments is not None
    if cu_seqlens is not None and segments is not None:
        raise RopeError("cu_seqlens and segments both split ids; pass one of them")
    types, mask = inputs.get("mm_token_type_ids"), inputs.get("attention_mask")
    if types is None:
        types = np.zeros(shape, np.int64)
        for row in rows:
            types[row] = find_types(name, keys, token_ids[row])
    types = to_host("mm_token_type_ids", types)
    mask = np.ones(shape, bool) if mask is None else to_host("attention_mask", mask)
    if mask.size and not 0 <= mask.min() <= mask.max() <= 1:
        raise RopeError(
            "attention_mask must be 0 for padding and 1 for tokens; pass numbers of sequences as "
            f"segments=. Got {mask.min()} to {mask.max()}"
        )
    mask = mask != 0
    if types.shape != shape or mask.shape != shape:
        raise RopeError(
            f"mm_token_type_ids and attention_mask must have the shape of ids, {shape}; got "
            f"{types.shape} and {mask.shape}"
        )
    if types.size and not 0 <= types.min() <= types.max() <= 2 + (name in OMNI):
        raise RopeError(
            "mm_token_type_ids must be 0 (text), 1 (image) or 2 (video); got "
            f"{types.min()} to {types.max()}"
        )
    tokens = [(token_ids[row][mask[row]], types[row][mask[row]]) for row in rows]
    found = [*_INDEXERS.get(name, index_spans)(name, keys, inputs, tokens, is_packed)]
    like = found[0] if found else np.empty((3, 0), np.int64)
    padding = int(name in ("glm_image", "qwen2_5_omni"))
    positions = np.full((len(like), *shape), padding, like.dtype)
    for row, at in zip(rows, found, strict=True):
        positions[:, *row][:, mask[row]] = at
    deltas = np.array([at.max(initial=-1) + 1 - at.shape[1] for at in found], like.dtype)
    return positions, deltas if is_packed else deltas.reshape(shape[:-1])


def _split_runs(shape: tuple[int, ...], segments: Any) -> list[tuple[int | slice, ...]]:
    """Return the index of each run of one number, a sequence, but of 0."""
    numbers = to_host("segments", segments)
    if numbers.shape != shape or (numbers.size and numbers.min() < 0):
        raise RopeError(
            f"segments must have the shape of ids, {shape}, and numbers from 0 on; got "
            f"{numbers.shape}" + f" from {numbers.min()} on" * bool(numbers.size)
        )
    return [
        (*row, slice(start, stop))
        for row in np.ndindex(shape[:-1])
        for number, start, stop in split_runs(numbers[row])
        if number
    ]


def _split_rows(shape: tuple[int, ...], cu_seqlens: Any) -> list[tuple[int | slice, ...]]:
    """Return the index of each sequence of a batch or of packed tokens."""
    if cu_seqlens is None:
        return [*np.ndindex(shape[:-1])]
    _, ends = parse_ends(to_host("cu_seqlens", cu_seqlens))
    if shape[:-1] not in ((), (1,)) or ends[-1] > shape[-1]:
        raise RopeError(
            f"cu_seqlens needs ids of (tokens,) or (1, tokens), with at least {ends[-1]} tokens; "
            f"got shape {shape}"
        )
    ends = ends.tolist()
    if ends[-1] < shape[-1]:  # as in packed, the rest is a sequence too
        ends.append(shape[-1])
    leading = (0,) * (len(shape) - 1)
    return [(*leading, slice(*tokens)) for tokens in pairwise(ends)]
