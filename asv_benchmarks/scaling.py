"""What a scaling rule costs: once, when its tables are made. Later calls cost the same for all."""

import itertools
import time

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

import rope_xp
from rope_xp import scaling

from .shared import common

# As the configurations of well-known models have them. By name, as older versions lack some rules.
RULES = {
    "none": {},
    "Linear": {"factor": 4.0},
    "NTK": {"factor": 4.0},
    "YaRN": {"factor": 16.0, "original_max_position_embeddings": 8192},
    "LongRoPE": {
        "short_factor": (1.0,) * 64,
        "long_factor": (4.0,) * 64,
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
    },
    "Llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_fresh = itertools.count()


class Rule:
    version = "1"
    params = (list(RULES),)
    param_names = ("rule",)

    def setup(self, rule: str) -> None:
        if rule != "none" and not hasattr(scaling, rule):
            raise SkipNotImplemented(f"this version of rope_xp has no {rule}")

    def track_first_use(self, rule: str) -> float:
        """Milliseconds until a RoPE that was never seen gives cos and sin of one token."""
        times = [_first_use(rule) for _ in range(1 if common.QUICK else 25)]
        return float(np.median(times)) * 1e3

    track_first_use.unit = "ms"


def _first_use(rule: str) -> float:
    fields = RULES[rule]
    start = time.perf_counter()
    made = None if rule == "none" else getattr(scaling, rule)(**fields)
    rope = rope_xp.RoPE(base=500_000.0 + next(_fresh), scaling=made)
    if hasattr(rope, "for_length"):
        rope = rope.for_length(16384)
    rope.cos_sin(np.asarray([100_000]), 128)
    return time.perf_counter() - start
