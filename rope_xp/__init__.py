"""One rotary position embedding for every array library.

>>> import numpy as np
>>> import rope_xp
>>> q, k = np.ones((1, 6, 8, 64)), np.ones((1, 6, 2, 64))
>>> q, k = rope_xp.apply(q, k, positions=np.arange(6), layout="half")
"""

import typing as _typing

from rope_xp import _safe_path, scaling  # noqa: F401  # the first acts when it is imported
from rope_xp._core.caches import clear_caches
from rope_xp._core.errors import MissingBackendError, RopeConfigError, RopeError
from rope_xp._core.lazy import load_on_first_use as _load_on_first_use
from rope_xp._core.pytrees import registrars as _registrars
from rope_xp._dispatch import find as _find
from rope_xp._dispatch import libraries as _libraries  # noqa: F401  # fills the table of find
from rope_xp._dispatch.choose import Explanation, use_path
from rope_xp._functions import (
    apply,
    apply_angles,
    apply_frequencies,
    apply_tables,
    explain,
    permute_weights,
)
from rope_xp.angles import Angles
from rope_xp.choice import Choice
from rope_xp.hf import LayerPlan, from_hf_config, plan, to_hf_config
from rope_xp.norm import QKNorm
from rope_xp.rope import RoPE

_registrars.append(_find.register_pytrees)

if _typing.TYPE_CHECKING:
    from rope_xp import backend, integrations, layers, onnx, papers, positions, testing  # noqa: F401  # names for type checkers
    from rope_xp._cumulative import cumulative_angles
else:
    __getattr__, __dir__ = _load_on_first_use(
        __name__,
        *("backend", "integrations", "layers", "onnx", "papers", "positions", "testing"),
        cumulative_angles="_cumulative",
    )

__version__ = "0.1.0"

__all__ = [
    "Angles",
    "Choice",
    "Explanation",
    "LayerPlan",
    "MissingBackendError",
    "QKNorm",
    "RoPE",
    "RopeConfigError",
    "RopeError",
    "apply",
    "apply_angles",
    "apply_frequencies",
    "apply_tables",
    "clear_caches",
    "cumulative_angles",
    "explain",
    "from_hf_config",
    "permute_weights",
    "plan",
    "scaling",
    "to_hf_config",
    "use_path",
]
