"""torch: its glue and its fast paths."""

import array_api_compat.torch as xp

from rope_xp._core.versions import check_version

check_version("torch")

from .library import Torch  # noqa: E402  # an older version fails there without a reason
from .paths import TorchNative, Triton  # noqa: E402  # needs what library.py checks

BACKEND = Torch("torch", xp, (Triton(), TorchNative()))
