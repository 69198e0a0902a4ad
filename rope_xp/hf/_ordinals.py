"""Positions of HunYuan-VL: an image moves nothing, and has a number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf._counting import needed
from rope_xp.hf._keys import read
from rope_xp.hf._spans import IMAGE, runs, sizes


class Counter:
    """Counts rows of a batch, one after the other."""

    def __init__(self, keys: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        text = read(keys.get("text_config") or keys)
        parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
        sections = parameters.get("mrope_section", parameters.get("xdrope_section")) or ()
        if len(sections) < 3:
            msg = (
                "mrope_section of rope_parameters must have three numbers at least, for width, "
                f"height and the image; got {sections!r}"
            )
            raise RopeConfigError(msg)
        self.components = len(sections)
        self.image, self.video = keys.get("image_token_id"), None
        merge = needed(read(needed(keys, "vision_config")), "spatial_merge_size")
        self.grids = sizes(inputs, "image_grid_thw", merge)
        self.images = 0

    def row(self, _: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Return (components, tokens) of a sequence."""
        positions = np.tile(np.arange(kinds.size), (self.components, 1))
        for kind, first, end in runs(kinds):
            if kind != IMAGE:
                continue
            if self.images == len(self.grids):
                raise RopeError("image_grid_thw has fewer grids than ids have images")
            height, width = self.grids[self.images][1:]
            # The last column ends each line.
            cells = np.indices((height, width + 1)).reshape(2, -1)
            around = end - first - cells.shape[1]  # tokens that some processors put around an image
            if around not in (0, 2):
                msg = (
                    f"image_grid_thw has a grid of {height} by {width} after merging, "
                    f"{cells.shape[1]} tokens with the ends of lines, where ids have {end - first}"
                )
                raise RopeError(msg)
            inside = slice(first + around // 2, end - around // 2)
            positions[-3, inside], positions[-2, inside] = cells[1], cells[0]
            positions[-1, inside] = self.images
            self.images += 1
        return positions

    def check_all_taken(self) -> None:
        """Check that each grid had its tokens."""
        if self.images != len(self.grids):
            raise RopeError("image_grid_thw has more grids than ids have tokens for")
