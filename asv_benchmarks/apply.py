"""Prefill: q and k of 4096 tokens, where memory is the limit. Every ratio is better if larger."""

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import common
from .contenders import contenders, ratio


class Prefill:
    params = (common.TARGETS, common.LAYOUTS, common.DTYPES)
    param_names = ("target", "layout", "dtype")
    timeout = 300

    def setup(self, target: str, layout: str, dtype: str) -> None:
        self.target, actions = contenders(target, layout, dtype)
        self.apply = actions["new"]
        common.synchronise(self.target, self.apply())  # with --quick asv does not warm up

    def time_apply(self, target: str, layout: str, dtype: str) -> None:
        common.synchronise(self.target, self.apply())

    def track_share_of_copy(self, target: str, layout: str, dtype: str) -> float:
        """Time to copy q and k in the same library, over that to rotate them into new arrays."""
        return ratio(target, layout, dtype, "new", "copy")

    track_share_of_copy.unit = "of a copy"


class Against:
    """The layout of most models, beside what their code runs and beside a copy without new memory.

    ``limit`` is what copies: into given memory, or in jax ``x * 2`` under jit.
    """

    params = (common.TARGETS, common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def _ratio(self, target: str, dtype: str, ours: str, other: str) -> float:
        _, actions = contenders(target, "half", dtype)
        if not {ours, other} <= set(actions):
            raise SkipNotImplemented(f"{target} has no {other!r}")
        return ratio(target, "half", dtype, ours, other)

    def track_usual(self, target: str, dtype: str) -> float:
        return self._ratio(target, dtype, "new", "usual")

    def track_compiled(self, target: str, dtype: str) -> float:
        return self._ratio(target, dtype, "new", "compiled")

    def track_limit(self, target: str, dtype: str) -> float:
        if target.startswith("jax"):
            return self._ratio(target, dtype, "new", "jit x * 2")
        return self._ratio(target, dtype, "out", "copy into")

    def track_bhsd(self, target: str, dtype: str) -> float:
        """Views with heads before tokens, against arrays in order: 1 is no slower."""
        return self._ratio(target, dtype, "bhsd", "new")

    def track_fused(self, target: str, dtype: str) -> float:
        """In place in a fused projection, against an array of its own: 1 is no slower."""
        return self._ratio(target, dtype, "slice of fused", "slice")

    track_usual.unit = track_compiled.unit = "times as fast"
    track_limit.unit = "of the limit"
    track_bhsd.unit = track_fused.unit = "of contiguous"
