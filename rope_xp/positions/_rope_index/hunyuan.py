"""Positions of HunYuan-VL: (width, height, image) beside the index of the token."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeConfigError
from rope_xp.hf._files import read_mapping
from rope_xp.positions._rope_index.indexer import IMAGE, GridQueue, Indexer, read_grids, split_runs
from rope_xp.positions._rope_index.models import need_key, need_vision


class HunYuanIndexer(Indexer):
    """Counts all tokens; the cells of an image beside them."""

    def __init__(self, keys: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        text = read_mapping(keys.get("text_config") or keys)
        parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
        sections = parameters.get("mrope_section", parameters.get("xdrope_section")) or ()
        if len(sections) < 3:
            raise RopeConfigError(
                "mrope_section of rope_parameters must have three numbers at least, for width, "
                f"height and the image; got {sections!r}"
            )
        self.components = len(sections)
        self.image_token_id = keys.get("image_token_id")
        merge = need_key(need_vision(keys), "spatial_merge_size")
        grids = read_grids(inputs, "image_grid_thw", merge)
        self._grids = GridQueue("image_grid_thw", enumerate(grids))
        self.queues = (self._grids,)

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Return the positions (components, tokens) of a sequence."""
        positions = np.tile(np.arange(types.size), (self.components, 1))
        for token_type, start, stop in split_runs(types):
            if token_type != IMAGE:
                continue
            image, (_frames, height, width) = self._grids.take()
            cells = np.indices((height, width + 1)).reshape(2, -1)  # a newline token ends each row
            marks = stop - start - cells.shape[1]  # some processors put a token on either side
            if marks not in (0, 2):
                hint = "; a newline token ends each row"
                grid = height, width
                raise self._grids.mismatch(grid, cells.shape[1], stop - start, hint)
            inside = slice(start + marks // 2, stop - marks // 2)
            positions[-3, inside], positions[-2, inside] = cells[1], cells[0]
            positions[-1, inside] = image
        return positions
