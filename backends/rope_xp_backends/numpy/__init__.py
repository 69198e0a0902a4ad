"""numpy, and what its arrays are rotated by."""

import array_api_compat.numpy as xp

from .library import Numpy
from .paths import Chunked, Complex, Numba

BACKEND = Numpy("numpy", xp, (Numba(), Chunked(), Complex()))
