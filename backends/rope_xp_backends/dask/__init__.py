"""The backend of dask."""

import array_api_compat.dask.array as xp

from .library import Dask
from .paths import Blockwise

BACKEND = Dask("dask", xp, (Blockwise(),))
