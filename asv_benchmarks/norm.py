"""RMSNorm of q and k in the pass that rotates them, over the rotation alone."""

from functools import lru_cache
from typing import Any

import rope_xp
from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, CannotMeasure
from rope_xp._bench.targets import Target

from .shared import common

ROPE = rope_xp.RoPE(base=BASE, layout="half")


@lru_cache(maxsize=1)
def calls(name: str, dtype: str, tokens: int) -> tuple[Target, Action, Action]:
    """Return the target, and calls with a norm and without; or raise CannotMeasure."""
    target, q, k, positions = common.case(name, tokens, common.POSITION, dtype)
    weights = (q[0, 0, 0] * 0 + 1, k[0, 0, 0] * 0 + 1)
    norm = rope_xp.QKNorm(*weights)

    def apply(q: Any, k: Any, norm: Any) -> Any:
        return ROPE.apply(q, k, positions, norm=norm)

    if target.library == "jax":
        import jax

        apply = jax.jit(apply)
    return target, lambda: apply(q, k, norm), lambda: apply(q, k, None)


class Norm:
    """4096 tokens in each dtype, and one token in float32."""

    version = "1"
    params = (common.TARGETS, common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        if target.startswith("dask"):
            with common.skipping():
                msg = f"{target}: its graph is what a call takes"
                raise CannotMeasure(msg)
        with common.skipping():
            calls(target, dtype, common.TOKENS)

    def track_over_rotation(self, target: str, dtype: str) -> float:
        found, normalized, alone = calls(target, dtype, common.TOKENS)
        return common.over(*clock.best_seconds(found, common.REPEAT, normalized, alone))

    def track_one_token_over_rotation(self, target: str, dtype: str) -> float:
        found, *both = calls(target, dtype, 1)
        times = (common.best_microseconds(found, call, *common.LOOPS) for call in both)
        return common.over(*times)

    track_over_rotation.unit = track_one_token_over_rotation.unit = "rotations"
