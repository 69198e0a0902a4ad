"""What is known of a machine, and what one call costs there besides its time on the device."""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np

from rope_xp._bench import clock, formulas
from rope_xp._bench.clock import Action
from rope_xp._bench.targets import Target

PACKAGES = (
    *("numpy", "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "jax", "jax-cuda13-plugin"),
    *("transformers", "liger-kernel", "flash-attn", "flashinfer-python", "quack-kernels"),
)
READINGS = (
    *("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem"),
    *("clocks.max.sm", "clocks.max.mem", "temperature.gpu", "power.draw", "power.limit"),
)
"""The fields that nvidia-smi reports. Nothing is set."""
START = 1_000_000


def machine() -> dict[str, Any]:
    """Return names and versions."""
    found = {"rope_xp": importlib.import_module("rope_xp").__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"platform": platform.platform(), "python": platform.python_version(), "versions": found}


def readings() -> list[dict[str, str]] | str:
    """Return what nvidia-smi reads of each GPU, with units, or why it reads nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(READINGS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(  # noqa: S603  # the words are above
            command, check=True, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split())
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(READINGS, row, strict=True)) for row in rows]


def properties(target: Target) -> dict[str, Any]:
    """Return what a library says of its GPU."""
    if target.name == "torch:gpu":
        found = importlib.import_module("torch").cuda.get_device_properties(0)
        names = ("name", "multi_processor_count", "L2_cache_size", "total_memory", "major", "minor")
        return {name: getattr(found, name) for name in names if hasattr(found, name)}
    if target.name == "cupy:gpu":
        found = importlib.import_module("cupy").cuda.runtime.getDeviceProperties(0)
        name = found["name"].decode()
        counts = ("multiProcessorCount", "l2CacheSize", "totalGlobalMem", "major", "minor")
        return {"name": name} | {key: found[key] for key in counts}
    return {}


def host_microseconds(target: Target, action: Action, loops: int) -> float:
    """Return what the host spends on a call."""
    return min(clock.rounds_of_microseconds(target, action, loops, 5))


def launches(target: Target, action: Action) -> int | None:
    """Return how many kernels a call launches, by torch's profiler; None where it sees none."""
    if target.name != "torch:gpu":
        return None
    torch = importlib.import_module("torch")
    clock.wait(target, action())
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as seen:
        clock.wait(target, action())
    kind = torch.autograd.DeviceType.CUDA
    return sum(event.device_type == kind for event in seen.events()) or None


def peak_over_results(target: Target, action: Action) -> float | None:
    """Return what a call allocates at its peak, in sizes of its results; None in jax."""
    measure = PEAKS.get(target.name)
    if measure is None:
        return None
    results = action()  # held, so that no later call is given their memory
    clock.wait(target, results)
    return measure(lambda: clock.wait(target, action())) / sum(x.nbytes for x in results)


def _torch_peak(call: Callable[[], None]) -> float:
    cuda = importlib.import_module("torch").cuda
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    call()
    return float(cuda.max_memory_allocated() - before)


def _cupy_peak(call: Callable[[], None]) -> float:
    pool = importlib.import_module("cupy").get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    call()
    return float(pool.total_bytes() - before)


PEAKS = {"torch:gpu": _torch_peak, "cupy:gpu": _cupy_peak}


def largest_error(target: Target, function: Callable[..., Any], frequencies: np.ndarray) -> float:
    """Return the largest error of cos and sin at positions from a million on.

    They are what the pair (1, 0) of float32 is turned to, by ``function(positions)``, which makes
    a function of q, k and positions.
    """
    tokens, half = 256, len(frequencies)
    x = np.zeros((1, tokens, 1, 2 * half), np.float32)
    x[..., :half] = 1
    host = np.arange(START, START + tokens, dtype=np.int32)
    positions = target.put(host[None])
    exact = formulas.turns(host, frequencies)
    turned = target.fetch(function(positions)((target.put(x), target.put(x)), positions)[0])
    cos, sin = turned[0, :, 0, :half], turned[0, :, 0, half:]
    return float(max(np.abs(cos - exact.real).max(), np.abs(sin - exact.imag).max()))
