"""What a call takes at its peak beyond what was there before, in sizes of its results.

1 is the results and nothing else. On a CPU it is the resident memory of the process; asv runs every
combination in a process of its own.
"""

from .shared import common, contenders, peak


class Peak:
    version = "1"
    params = ([name for name in common.TARGETS if name != "jax:gpu"], common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        with common.skipping():
            self.target, self.apply, self.usual = contenders.pair(
                target, "half", dtype, "new", "usual", common.TOKENS
            )
            peak.check(target)

    def track_peak_over_results(self, target: str, dtype: str) -> float:
        """Of rope_xp into new arrays."""
        return round(peak.over_results(self.target, self.apply), 3)

    def track_peak_of_usual(self, target: str, dtype: str) -> float:
        """Of the formula in common use."""
        return round(peak.over_results(self.target, self.usual), 3)

    track_peak_over_results.unit = track_peak_of_usual.unit = "results"
