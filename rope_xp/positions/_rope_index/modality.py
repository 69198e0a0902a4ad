"""Types of tokens, and the base class of indexers, which count their positions."""

from collections.abc import Iterator, Sequence

import numpy as np

from rope_xp.positions._rope_index.grids import GridQueue

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
"""Values of ``mm_token_type_ids``."""


class Indexer:
    """Counts the rows of a batch in order."""

    components: int = 3
    padding: int = 0
    """The position of padding."""
    dtype: type = np.int64
    queues: Sequence[GridQueue] = ()
    """The grids of which each must have its tokens."""
    image_token_id: int | None = None
    video_token_id: int | None = None

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        """Return the type of each token."""
        types = np.zeros(ids.shape, np.int64)
        types[ids == self.image_token_id] = IMAGE
        types[ids == self.video_token_id] = VIDEO
        return types

    def index_row(self, row: int, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Return the positions (components, tokens) of a sequence."""
        raise NotImplementedError


def split_runs(types: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the type, start and stop of each run of tokens of one type."""
    stops = [*(np.flatnonzero(np.diff(types)) + 1).tolist(), types.size]
    for start, stop in zip([0, *stops], stops, strict=False):
        if start < stop:
            yield int(types[start]), start, stop
