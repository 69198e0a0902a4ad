"""torch: its glue and its fast paths."""

import array_api_compat.torch as xp

from .library import Torch
from .paths import TorchLLVM, Triton

BACKEND = Torch("torch", xp, (Triton(), TorchLLVM()))
