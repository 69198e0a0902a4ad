"""What a call takes at its peak beyond what was there before, in sizes of its results.

1 is the results and nothing else. On a CPU it is the resident memory of the process, of which Linux
alone keeps a peak that can be reset; asv runs every combination in a process of its own.
"""

import re
from collections.abc import Callable
from pathlib import Path

from asv_runner.benchmarks.mark import SkipNotImplemented

from rope_xp._bench import clock
from rope_xp._bench.clock import Action

from . import common, contenders, gpu_facts

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    # jax cannot forget an earlier peak of a GPU.
    version = "1"
    params = ([name for name in common.TARGETS if name != "jax:gpu"], common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        with common.skipping():
            self.target, self.apply, self.usual = contenders.pair(
                target, "half", dtype, "new", "usual", common.TOKENS
            )
        if target.endswith(":cpu") and not _CLEAR.exists():
            raise SkipNotImplemented("only Linux tells the peak of a process since a moment")

    def _over(self, call: Action) -> float:
        # The first call compiles. Its results are held, so that no later one is given their memory.
        results = call()
        clock.wait(self.target, results)
        size = sum(x.nbytes for x in results)
        measure = _MEASURES[self.target.name]
        return common.over(measure(lambda: clock.wait(self.target, call())), size)

    def track_peak_over_results(self, target: str, dtype: str) -> float:
        """Of rope_xp into new arrays."""
        return self._over(self.apply)

    def track_peak_of_usual(self, target: str, dtype: str) -> float:
        """Of the formula in common use."""
        return self._over(self.usual)

    track_peak_over_results.unit = track_peak_of_usual.unit = "results"


def host(call: Callable[[], None]) -> float:
    _CLEAR.write_text("5")
    before = _kib("VmRSS")
    call()
    return (_kib("VmHWM") - before) * 1024


def _kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise SkipNotImplemented(f"this Linux does not tell {field}")
    return int(found[1])


_MEASURES = {
    **{name: host for name in common.TARGETS if name.endswith(":cpu")},
    **gpu_facts.PEAKS,
}
