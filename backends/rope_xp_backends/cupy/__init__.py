"""cupy, and what its arrays are rotated by."""

import array_api_compat.cupy as xp

from .library import Cupy
from .paths import Cuda

BACKEND = Cupy("cupy", xp, (Cuda(),))
