"""Measure rope_xp on a GPU beside a copy and beside its rivals, print a table and write JSON.

    python -m asv_benchmarks.gpu_report --out gpu_report.json
    python -m asv_benchmarks.gpu_report --device cpu     # tiny sizes, to see that it works

It needs no network. q is (b, s, 32, 128) and k (b, s, 8, 128), bfloat16, from one token to 16384.
Contenders take turns in an order that changes. In torch and cupy each call is timed by events of
the device, after writes of 2 GB that leave nothing of q and k in its caches, and behind which the
host is done launching. jax has no events: there the clock runs over a loop of calls, with caches as
they are. "share of a copy" is the median time of copying q and k into given memory over that of a
contender; forward and backward is set beside two copies. The JSON is written after each library.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rope_xp._bench import clock, formulas, targets
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import HEAD_DIM, HEADS, numpy_dtype
from rope_xp._bench.targets import Target
from rope_xp._contract.typing import Array

from . import gpu_rivals

LIBRARIES = ("torch", "cupy", "jax")
PACKAGES = ("numpy", "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "jax", "liger-kernel")
SHAPES = {
    "gpu": [(b, 1) for b in (1, 4, 16, 64, 256)] + [(1, 256), (1, 1024), (1, 4096), (1, 16384)],
    "cpu": [(1, 1), (2, 1), (1, 16)],
}
START = 1_000_000
FLUSH_BYTES = 1 << 29
# Half a millisecond of an H200, as forward and backward may take the host as long.
FLUSHES = 4
Makers = dict[str, gpu_rivals.Maker]


# --- clocks --------------------------------------------------------------------------------------


def clock_of(target: Target) -> tuple[str, Callable[[Action], float]]:
    """Return how a target is timed, and the function that returns seconds."""
    if not target.name.endswith(":gpu"):
        return "wall clock", lambda action: _wall(target, action, 1)
    if target.library == "jax":
        return "wall clock over 20 calls, caches as they are", lambda a: _wall(target, a, 20)
    module = importlib.import_module(target.library)
    flushed = target.put(np.zeros(FLUSH_BYTES, np.int8))
    events = [
        module.cuda.Event(enable_timing=True) if target.library == "torch" else module.cuda.Event()
        for _ in range(2)
    ]

    def seconds(action: Action) -> float:
        for _ in range(FLUSHES):
            flushed[...] = 1
        events[0].record()
        results = action()
        events[1].record()
        events[1].synchronize()
        del results
        if target.library == "torch":
            return events[0].elapsed_time(events[1]) / 1e3
        return module.cuda.get_elapsed_time(*events) / 1e3

    return "events of the device, caches flushed", seconds


def _wall(target: Target, action: Action, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        results = action()
    clock.wait(target, results)
    return (time.perf_counter() - start) / calls


def in_turns(
    seconds: Callable[[Action], float], actions: dict[str, Action], repeat: int
) -> dict[str, list[float]]:
    """Return the times of all actions, after two calls to warm each up."""
    names = list(actions)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, repeat):
        for i in np.random.default_rng(turn + 2).permutation(len(names)):
            took = seconds(actions[names[i]])
            if turn >= 0:
                times[names[i]].append(took)
    return times


# --- what is measured ----------------------------------------------------------------------------


def inputs(target: Target, batch: int, tokens: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(0)
    q, k = (
        random.standard_normal((batch, tokens, heads, HEAD_DIM), np.float32).astype(
            numpy_dtype("bfloat16")
        )
        for heads in HEADS
    )
    positions = np.arange(5000, 5000 + tokens, dtype=np.int32)
    return target.put(q), target.put(k), target.put(np.tile(positions, (batch, 1)))


def tried(target: Target, made: Makers) -> tuple[Makers, dict[str, str]]:
    """Return what runs on one token, and why the rest does not."""
    from rope_xp._contract.errors import BROKEN  # asv reads this file beside older libraries too

    q, k, positions = inputs(target, 1, 1)
    found, missing = {}, {}
    for name, make in made.items():
        try:
            clock.wait(target, make(positions)(q, k, positions))
        except BROKEN as error:
            missing[name] = " ".join(str(error).split()) or type(error).__name__
        else:
            found[name] = make
    return found, missing


def speed(
    target: Target, made: Makers, batch: int, tokens: int, repeat: int
) -> list[dict[str, Any]]:
    """Return a row for each contender, forward and forward with backward."""
    q, k, positions = inputs(target, batch, tokens)
    size = 2 * sum(HEADS) * HEAD_DIM * batch * tokens
    how, seconds = clock_of(target)
    functions = {name: make(positions) for name, make in made.items()}
    forward: dict[str, Action] = {"copy": gpu_rivals.copies(target, q, k)}
    backward: dict[str, Action] = {"copy": gpu_rivals.copies(target, q, k)}
    for name, function in functions.items():
        own = target.copy(q), target.copy(k)  # as some write over their inputs
        forward[name] = lambda function=function, own=own: function(*own, positions)
        both = gpu_rivals.forward_and_backward(target, function, q, k, positions)
        if both is not None and name != "rope_xp in place":  # which autograd does not record
            backward[name] = both
    rows = []
    for actions, copies in ((forward, 1), (backward, 2)):
        if len(actions) == 1:  # the copy alone
            continue
        times = in_turns(seconds, actions, repeat)
        limit = copies * float(np.median(times["copy"]))
        for name, taken in times.items():
            median = float(np.median(taken))
            rows.append(
                {
                    "target": target.name,
                    "contender": name,
                    "direction": "forward" if copies == 1 else "forward and backward",
                    "batch": batch,
                    "tokens": tokens,
                    "bytes_of_q_and_k": size,
                    "best_us": min(taken) * 1e6,
                    "median_us": median * 1e6,
                    "share_of_copy": None if name == "copy" else limit / median,
                    "timed_by": how,
                }
            )
    return rows


def overhead(target: Target, made: Makers, loops: int) -> dict[str, float]:
    """Return the microseconds that the host spends on one token, for each contender."""
    q, k, positions = inputs(target, 1, 1)
    found = {}
    for name, make in made.items():
        function = make(positions)
        found[name] = clock.best_microseconds(
            target, lambda function=function: function(q, k, positions), loops, 5
        )
    return found


def accuracy(target: Target, made: Makers) -> dict[str, float]:
    """Return the largest error of cos and sin at positions from a million on.

    They are what the pair (1, 0) of float32 is turned to.
    """
    tokens = 256
    x = np.zeros((1, tokens, 1, 128), np.float32)
    x[..., :64] = 1
    host = np.arange(START, START + tokens, dtype=np.int32)
    positions = target.put(host[None])
    exact = formulas.turns(host, gpu_rivals.ROPE.frequencies(128))
    found = {}
    for name, make in made.items():
        turned = target.fetch(make(positions)(target.put(x), target.put(x), positions)[0])
        cos, sin = turned[0, :, 0, :64], turned[0, :, 0, 64:]
        found[name] = float(max(np.abs(cos - exact.real).max(), np.abs(sin - exact.imag).max()))
    return found


# --- the report ----------------------------------------------------------------------------------


def report(
    device: str,
    libraries: list[str],
    repeat: int,
    compile_too: bool,
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Return everything that was found out, and what is missing by name.

    It is saved after each library, should the next one break off.
    """
    found: dict[str, Any] = {
        "platform": platform.platform(),
        "versions": _versions(),
        "devices": {},
        "speed": [],
        "overhead_us": {},
        "largest_error_at_1M": {},
        "missing": {},
    }
    for library in libraries:
        name = f"{library}:{device}"
        target = targets.find(name) if name in targets.NAMES else f"{library} has no {device}"
        if isinstance(target, str):
            found["missing"][name] = target
            continue
        found["devices"][name] = targets.devices(targets.library_of(name))
        made, absent = gpu_rivals.functions(target, compile_too)
        made, failed = tried(target, made)
        for contender, why in (absent | failed).items():
            found["missing"][f"{name} {contender}"] = why
        for batch, tokens in SHAPES[device]:
            found["speed"] += speed(target, made, batch, tokens, repeat)
        loops = 20 if device == "cpu" else 300
        found["overhead_us"][name] = overhead(target, made, loops)
        found["largest_error_at_1M"][name] = accuracy(target, made)
        save(found)
    return found


def _versions() -> dict[str, str]:
    found = {"rope_xp": importlib.import_module("rope_xp").__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def markdown(found: dict[str, Any]) -> str:
    """Return the report as people read it."""
    lines = ["| target | direction | batch | tokens | contender | median, us | share of a copy |"]
    lines.append("|---" * 7 + "|")
    for row in found["speed"]:
        share = row["share_of_copy"]
        cells = [row[key] for key in ("target", "direction", "batch", "tokens", "contender")]
        cells += [f"{row['median_us']:.1f}", "" if share is None else f"{share:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for title, key, form in (
        ("the host spends on one token, us", "overhead_us", ".1f"),
        ("largest error of cos and sin at 1M", "largest_error_at_1M", ".1e"),
    ):
        lines += ["", f"| target | contender | {title} |", "|---|---|---|"]
        for target, values in found[key].items():
            lines += [f"| {target} | {name} | {v:{form}} |" for name, v in values.items()]
    lines += ["", *(f"missing: {name}: {why}" for name, why in found["missing"].items())]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run it. Without a GPU, and unless the CPU is asked for, it measures nothing and says so."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu_report")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default %(default)s")
    parser.add_argument("--repeat", type=int, default=30, help="timed calls, default 30")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--out", type=Path, default=Path("gpu_report.json"))
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take all memory
    libraries = options.libraries.split(",")
    if unknown := set(libraries) - set(LIBRARIES):
        parser.error(f"no library is called {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")

    def save(found: dict[str, Any]) -> None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    found = report(options.device, libraries, options.repeat, not options.no_compile, save)
    if not found["speed"]:
        for name, why in found["missing"].items():
            print(f"{name}: {why}", file=sys.stderr)
        print("nothing was measured: no library finds a device", file=sys.stderr)
        return 1
    save(found)
    print(markdown(found))
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
