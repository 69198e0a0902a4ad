"""Positions of M-RoPE from token ids, equal to ``get_rope_index`` of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.positions._rope_index.canvases import HunYuanIndexer, MiniCPMIndexer
from rope_xp.positions._rope_index.indexer import find_model
from rope_xp.positions._rope_index.spans import SpanIndexer
from rope_xp.positions._values import to_host

_INDEXERS = {"hunyuan_vl": HunYuanIndexer, "minicpmv4_7": MiniCPMIndexer}


def get_rope_index(ids: Any, inputs: Mapping[str, Any], config: object) -> np.ndarray:
    """Return positions as :func:`rope_xp.positions.mrope_from_ids` describes them."""
    name, keys = find_model(config)
    token_ids = to_host("ids", ids)
    shape = token_ids.shape
    if len(shape) not in (1, 2):
        raise RopeError(f"ids must be (tokens,) or (batch, tokens); got shape {shape}")
    rows = list(np.ndindex(shape[:-1]))
    build = _INDEXERS.get(name, partial(SpanIndexer, name, rows=len(rows)))
    indexer = build(keys, inputs)
    types, mask = inputs.get("mm_token_type_ids"), inputs.get("attention_mask")
    types = to_host("mm_token_type_ids", indexer.token_types(token_ids) if types is None else types)
    mask = np.ones(shape, bool) if mask is None else to_host("attention_mask", mask) != 0
    if types.shape != shape or mask.shape != shape:
        raise RopeError(
            f"mm_token_type_ids and attention_mask must have the shape of ids, {shape}; got "
            f"{types.shape} and {mask.shape}"
        )
    positions = np.full((indexer.components, *shape), indexer.padding, indexer.dtype)
    for i, row in enumerate(rows):
        tokens = mask[row]
        row_positions = indexer.index_row(i, token_ids[row][tokens], types[row][tokens])
        positions[(slice(None), *row, tokens)] = row_positions
    for queue in indexer.queues:
        queue.check_all_taken()
    return positions
