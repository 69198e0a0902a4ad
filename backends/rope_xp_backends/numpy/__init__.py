"""The backend of numpy."""

import array_api_compat.numpy as xp

from .library import Numpy
from .paths import LLVM, Chunked

BACKEND = Numpy("numpy", xp, (LLVM(), Chunked()))
