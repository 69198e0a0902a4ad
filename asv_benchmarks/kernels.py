"""Each path by itself: its time on the device, compared with the least possible work.

On a GPU events of the stream take the time, so that what the host spends on a call is left out.
The least possible work is a copy into given memory; in jax ``x * 2`` under jit.
"""

import importlib

from asv_runner.benchmarks.mark import SkipNotImplemented

import rope_xp
from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.targets import Target

from . import common, contenders
from .paths import use_path

PATHS = [
    *("numpy:cpu llvm", "numpy:cpu chunked", "numpy:cpu portable"),
    *("torch:cpu llvm", "torch:cpu portable", "torch:gpu triton", "torch:gpu portable"),
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
            self.target, *self.calls = contenders.pair(
                name, layout, dtype, ours, least, common.TOKENS
            )
        try:
            with use_path(self.path):
                clock.wait(self.target, self.calls[0]())
        except (rope_xp.RopeError, rope_xp.MissingBackendError) as error:
            # Of another version, of a package that is absent, or not for such arrays.
            raise SkipNotImplemented(str(error)) from error

    def _seconds(self) -> list[float]:
        with use_path(self.path):
            return best_device_seconds(self.target, common.REPEAT, *self.calls)

    def track_milliseconds(self, path: str, dtype: str) -> float:
        ours, _ = self._seconds()
        return ours * 1e3

    def track_time_over_limit(self, path: str, dtype: str, layout: str) -> float:
        return common.over(*self._seconds())

    track_milliseconds.params = (PATHS, common.DTYPES)
    track_milliseconds.param_names = ("path", "dtype")
    track_milliseconds.unit = "ms"
    track_time_over_limit.unit = "copies"


def best_device_seconds(target: Target, repeat: int, *actions: Action) -> list[float]:
    """Return the shortest time of each action on its device.

    On a GPU by events of the stream, which leave out what the host spends on a call. jax has no
    streams that a caller can mark, and a CPU is its own host: there it is the time of the call.
    """
    events = {"torch:gpu": _torch_event_seconds, "cupy:gpu": _cupy_event_seconds}
    if target.name not in events:
        return clock.best_seconds(target, repeat, *actions)
    return [min(times) for times in clock.take_turns(events[target.name], repeat, actions)]


def _torch_event_seconds(action: Action) -> float:
    cuda = importlib.import_module("torch").cuda
    start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    action()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def _cupy_event_seconds(action: Action) -> float:
    cuda = importlib.import_module("cupy").cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    action()
    stop.record()
    stop.synchronize()
    return float(cuda.get_elapsed_time(start, stop)) / 1e3
