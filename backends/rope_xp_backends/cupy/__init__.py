"""cupy: its glue and its fast path."""

import array_api_compat.cupy as xp

from rope_xp._core.versions import check_version

check_version("cupy")

from .library import Cupy  # noqa: E402  # an older version fails there without a reason
from .paths import Cuda  # noqa: E402  # it imports .library

BACKEND = Cupy("cupy", xp, (Cuda(),))
