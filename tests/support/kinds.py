"""Memory of numpy in which numbers may lie: none of it is plain, and all of it is to be read."""

from collections.abc import Callable

import numpy as np


class Derived(np.ndarray):
    """An array of a user's class."""


COPIED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "Fortran order": np.asfortranarray,
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": lambda x: np.frombuffer(bytearray(1) + x.tobytes(), x.dtype, offset=1).reshape(
        x.shape
    ),
}
"""What no kernel reads where it lies."""
KINDS = COPIED | {"file": lambda x: x.view(np.memmap), "class": lambda x: x.view(Derived)}
