"""The backend of dask."""

import array_api_compat.dask.array as xp

from rope_xp._core.versions import check_version

check_version("dask")

from .library import Dask  # noqa: E402  # an older version fails there without a reason
from .paths import Blockwise  # noqa: E402  # it imports .library

BACKEND = Dask("dask", xp, (Blockwise(),))
