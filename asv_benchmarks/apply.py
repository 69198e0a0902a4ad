"""A whole call, from positions to rotated q and k: 4096 tokens, and one.

For many tokens memory is the limit, so the time is compared with copying q and k. For one token the
limit is the cost of a call on the host.
"""

from rope_xp._bench import clock

from .shared import common, contenders


class Prefill:
    """Into new arrays, in the layout of most models."""

    version = "1"
    params = (common.TARGETS, common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        with common.skipping():
            self.target, self.apply, self.copy = contenders.pair(
                target, "half", dtype, "new", "copy", common.TOKENS
            )
        clock.wait(self.target, self.apply())  # with --quick asv does not warm up

    def time_apply(self, target: str, dtype: str) -> None:
        clock.wait(self.target, self.apply())

    def track_time_over_copy(self, target: str, dtype: str) -> float:
        times = clock.best_seconds(self.target, common.REPEAT, self.apply, self.copy)
        return common.over(*times)

    track_time_over_copy.unit = "copies"


class Memory:
    """The layout of most models: memory that is there already, and views of other arrays.

    The least that can be done is to copy into given memory; in jax ``x * 2`` under jit.
    """

    version = "1"
    params = (common.TARGETS, common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        common.case(target, dtype=dtype)  # what is absent is told here

    def _over(self, target: str, dtype: str, ours: str, other: str) -> float:
        found, *calls = contenders.pair(target, "half", dtype, ours, other, common.TOKENS)
        return common.over(*clock.best_seconds(found, common.REPEAT, *calls))

    def track_time_over_limit(self, target: str, dtype: str) -> float:
        if target.startswith("jax"):
            return self._over(target, dtype, "new", "jit x * 2")
        return self._over(target, dtype, "out", "copy into")

    def track_in_place_over_limit(self, target: str, dtype: str) -> float:
        return self._over(target, dtype, "in place", "copy into")

    def track_bhsd_over_bshd(self, target: str, dtype: str) -> float:
        """Views with heads before tokens, compared with arrays in order."""
        return self._over(target, dtype, "bhsd", "new")

    def track_fused_over_alone(self, target: str, dtype: str) -> float:
        """In place in a fused projection, compared with a separate array."""
        return self._over(target, dtype, "slice of fused", "slice")

    track_in_place_over_limit.params = (common.WRITEABLE, common.DTYPES)
    track_bhsd_over_bshd.params = track_fused_over_alone.params = track_in_place_over_limit.params
    track_time_over_limit.params = ([*common.WRITEABLE, *common.JAX], common.DTYPES)
    track_time_over_limit.unit = track_in_place_over_limit.unit = "copies"
    track_bhsd_over_bshd.unit = track_fused_over_alone.unit = "of contiguous"


class Decode:
    """One token at position 5000, in microseconds that the host spends."""

    version = "1"
    params = (common.TARGETS,)
    param_names = ("target",)

    def setup(self, target: str) -> None:
        with common.skipping():
            self.target, self.apply, _ = contenders.pair(
                target, "half", "float32", "new", "copy", 1, common.POSITION
            )

    def track_apply(self, target: str) -> float:
        return common.best_microseconds(self.target, self.apply, *common.LOOPS)

    track_apply.unit = "us"
