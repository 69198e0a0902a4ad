"""The backend of numpy."""

from types import ModuleType
from typing import Any

import numpy as np

from rope_xp._core.forks import IMPORT_LOCK

from .library import Numpy
from .paths import Chunked, Native


class _Namespace(ModuleType):
    """numpy in the array API standard.

    Since version 2.1 numpy has all of it. array_api_compat.numpy, which an older one needs, takes
    0.2 s to import and 20 MB, so it is imported when an operation is first looked up.
    """

    def __getattr__(self, name: str) -> Any:
        xp: Any = np
        if not hasattr(np, "cumulative_sum"):
            with IMPORT_LOCK:  # or a child forked meanwhile waits for ever
                import array_api_compat.numpy as xp

        value = vars(self)[name] = getattr(xp, name)
        return value


BACKEND = Numpy("numpy", _Namespace("array_api_compat.numpy"), (Native(), Chunked()))
