"""The backend of numpy."""

from types import ModuleType
from typing import Any

from rope_xp._core.forks import IMPORT_LOCK

from .library import Numpy
from .paths import Chunked, Native


class _Namespace(ModuleType):
    """array_api_compat.numpy, imported when an operation is first looked up: that takes 0.2 s."""

    def __getattr__(self, name: str) -> Any:
        with IMPORT_LOCK:  # or a child forked meanwhile waits for ever
            import array_api_compat.numpy as xp

        value = vars(self)[name] = getattr(xp, name)
        return value


BACKEND = Numpy("numpy", _Namespace("array_api_compat.numpy"), (Native(), Chunked()))
