"""One rotary position embedding for every array library.

>>> import numpy as np
>>> import rope_xp
>>> q, k = np.ones((1, 6, 8, 64)), np.ones((1, 6, 2, 64))
>>> q, k = rope_xp.apply(q, k, positions=np.arange(6), layout="half")
"""

from rope_xp import _safe_path, scaling  # noqa: F401  # the first acts when it is imported
from rope_xp._core.caches import clear_caches
from rope_xp._core.errors import MissingBackendError, RopeConfigError, RopeError
from rope_xp._dispatch import libraries as _libraries  # noqa: F401  # fills the table of find
from rope_xp._dispatch.choose import Explanation, use_path
from rope_xp._dispatch.norm import QKNorm
from rope_xp._functions import apply, apply_frequencies, apply_tables, explain, permute_weights
from rope_xp.angles import Angles
from rope_xp.choice import Choice
from rope_xp.hf import LayerPlan, from_hf_config, plan
from rope_xp.rope import RoPE

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
    "apply_frequencies",
    "apply_tables",
    "clear_caches",
    "explain",
    "from_hf_config",
    "permute_weights",
    "plan",
    "scaling",
    "use_path",
]
