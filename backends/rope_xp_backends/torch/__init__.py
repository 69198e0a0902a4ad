"""torch, and what its tensors are rotated by."""

import array_api_compat.torch as xp

from .library import Torch
from .paths import LLVM, Triton

BACKEND = Torch("torch", xp, (Triton(), LLVM()))
