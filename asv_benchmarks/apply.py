"""Prefill: q and k of 4096 tokens, where memory is the limit."""

from collections.abc import Callable
from functools import lru_cache

import rope_xp
from rope_xp import _targets
from rope_xp._targets import Target

from . import common

TOKENS = 4096
Call = Callable[[], tuple]


@lru_cache(maxsize=1)
def _calls(name: str, layout: str) -> tuple[Target, Call, Call]:
    """Return what copies and what rotates, warmed up: with --quick asv does not."""
    target, q, k, positions = common.case(name, TOKENS)
    rope = rope_xp.RoPE(base=common.BASE, layout=layout)

    def copy() -> tuple:
        return target.copy(q), target.copy(k)

    def apply() -> tuple:
        return rope.apply(q, k, positions)

    common.synchronise(target, apply())
    return target, copy, apply


class Prefill:
    params = (common.TARGETS, common.LAYOUTS)
    param_names = ("target", "layout")
    timeout = 300

    def setup(self, target: str, layout: str) -> None:
        self.target, self.copy, self.apply = _calls(target, layout)

    def time_apply(self, target: str, layout: str) -> None:
        common.synchronise(self.target, self.apply())

    def track_share_of_copy(self, target: str, layout: str) -> float:
        """Time to copy q and k in the same library, over that to rotate them: 1.0 is the limit."""
        ours, copies = _targets.best_seconds(self.target, 9, self.apply, self.copy)
        return copies / ours

    track_share_of_copy.unit = "of a copy"
