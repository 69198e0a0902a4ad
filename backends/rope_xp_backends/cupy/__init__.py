"""cupy: its glue and its fast path."""

import array_api_compat.cupy as xp

from .library import Cupy
from .paths import Cuda

BACKEND = Cupy("cupy", xp, (Cuda(),))
