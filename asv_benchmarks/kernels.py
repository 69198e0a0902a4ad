"""Each path by itself: its time on the device, compared with the least possible work.

On a GPU what the host spends on a call is left out: shared/device_clock.py.
The least possible work is a copy into given memory; in jax ``x * 2`` under jit.
"""

from asv_runner.benchmarks.mark import SkipNotImplemented

import rope_xp
from rope_xp._bench import clock

from .shared import common, contenders, device_clock
from .shared.paths import use_path

PATHS = [
    *("numpy:cpu native", "numpy:cpu chunked", "numpy:cpu portable"),
    *("torch:cpu native", "torch:cpu portable", "torch:gpu triton", "torch:gpu portable"),
    *("jax:cpu jit", "jax:gpu jit", "cupy:gpu cuda", "cupy:gpu portable"),
]


class Path:
    version = "1"
    params = (PATHS, common.DTYPES, common.LAYOUTS)
    param_names = ("path", "dtype", "layout")
    timeout = 300

    def setup(self, path: str, dtype: str, layout: str = "half") -> None:
        name, _, self.path = path.partition(" ")
        ours, least = ("new", "jit x * 2") if name.startswith("jax") else ("out", "copy into")
        with common.skipping():
            self.target, *calls = contenders.pair(name, layout, dtype, ours, least, common.TOKENS)
            self.calls = tuple(calls)
        try:
            with use_path(self.path):
                clock.wait(self.target, self.calls[0]())
        except (rope_xp.RopeError, rope_xp.MissingBackendError) as error:
            # Of another version, of a package that is absent, or not for such arrays.
            raise SkipNotImplemented(str(error)) from error

    def _seconds(self) -> list[float]:
        with use_path(self.path):
            if self.target.name.endswith(":cpu"):  # which is its own host
                return clock.best_seconds(self.target, common.REPEAT, *self.calls)
            _, timing = device_clock.clock_of(self.target)
            turns = clock.take_turns(lambda call: timing(call).seconds, common.REPEAT, self.calls)
            return [min(times) for times in turns]

    def track_milliseconds(self, path: str, dtype: str) -> float:
        ours, _ = self._seconds()
        return ours * 1e3

    def track_time_over_limit(self, path: str, dtype: str, layout: str) -> float:
        return common.over(*self._seconds())

    track_milliseconds.params = (PATHS, common.DTYPES)
    track_milliseconds.param_names = ("path", "dtype")
    track_milliseconds.unit = "ms"
    track_time_over_limit.unit = "copies"
