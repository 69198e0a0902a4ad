"""What a call allocates at its peak beyond what was there before, in sizes of its results."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import CannotMeasure
from rope_xp._bench.targets import Target

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Call = Callable[[], object]


def check(name: str) -> None:
    """Raise CannotMeasure for a target of which no peak can be measured."""
    if name == "jax:gpu":
        raise CannotMeasure("jax cannot forget an earlier peak of a GPU")
    if name.endswith(":cpu") and not _CLEAR.exists():
        raise CannotMeasure("only Linux tells the peak of a process since a moment")


def over_results(target: Target, action: Action) -> float:
    """Return the peak of a call, which is 1 where it allocates its results and nothing else."""
    check(target.name)
    measure = {"torch:gpu": _torch, "cupy:gpu": _cupy}.get(target.name, host)
    # The first call compiles. Its results are held, so that no later one is given their memory.
    results = action()
    clock.wait(target, results)
    return measure(lambda: clock.wait(target, action())) / sum(x.nbytes for x in results)


def host(call: Call) -> float:
    """Return the bytes of resident memory, of which Linux keeps a peak that can be reset."""
    _CLEAR.write_text("5")
    before = _kib("VmRSS")
    call()
    return (_kib("VmHWM") - before) * 1024


def _kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise CannotMeasure(f"this Linux does not tell {field}")
    return int(found[1])


def _torch(call: Call) -> float:
    cuda = importlib.import_module("torch").cuda
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    call()
    return float(cuda.max_memory_allocated() - before)


def _cupy(call: Call) -> float:
    pool = importlib.import_module("cupy").get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    call()
    return float(pool.total_bytes() - before)
