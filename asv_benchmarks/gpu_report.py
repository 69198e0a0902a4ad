"""Measure rope_xp on a GPU beside a copy and beside its rivals, print tables and write JSON.

    python -m asv_benchmarks.gpu_report --out gpu_report.json
    python -m asv_benchmarks.gpu_report --libraries cupy --add --out gpu_report.json
    python -m asv_benchmarks.gpu_report --device cpu     # tiny sizes, to see that it works

It needs no network. q is (b, s, 32, 128) and k (b, s, 8, 128), bfloat16; 6554 tokens are 64 MiB.
One more case is a single array of one head. Each contender rotates a few tokens first, which must
be as float64 has them, and is not timed otherwise. Contenders take turns in an order that changes,
on the clocks of gpu_clock.py. A share of a copy is the median time of copying the arrays into given
memory over that of a contender; forward and backward is set beside two copies. "times as fast as"
is the time of a rival over ours. In all of them larger is better. The JSON is written after each
case.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rope_xp
from rope_xp._bench import formulas, targets
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import HEAD_DIM, HEADS, numpy_dtype
from rope_xp._bench.targets import Target

from . import gpu_bars, gpu_clock, gpu_facts, gpu_rivals
from .gpu_clock import Clock
from .gpu_rivals import Arrays, Contender

LIBRARIES = ("torch", "cupy", "jax")
Contenders = dict[str, Contender]


class Case(NamedTuple):
    """The arrays of a timing."""

    batch: int
    tokens: int
    heads: tuple[int, ...] = HEADS
    head_dim: int = HEAD_DIM

    @property
    def bytes(self) -> int:
        """Of all arrays, in bfloat16."""
        return 2 * self.batch * self.tokens * sum(self.heads) * self.head_dim


CASES = {
    "gpu": [
        *(Case(batch, 1) for batch in (1, 16, 256)),
        *(Case(1, tokens) for tokens in (256, 1024, 4096, 6554, 16384)),
        Case(1, 65536, (1,), 64),
    ],
    "cpu": [Case(1, 1), Case(2, 16), Case(1, 16, (1,), 64)],
}
CHECKED = Case(2, 16)
FIRST = 5000
"""The position of the first token."""


def inputs(target: Target, case: Case) -> tuple[Arrays, Any]:
    """Return arrays and positions, (batch, tokens)."""
    random = np.random.default_rng(0)
    shapes = [(case.batch, case.tokens, heads, case.head_dim) for heads in case.heads]
    hosts = [random.standard_normal(s, np.float32).astype(numpy_dtype("bfloat16")) for s in shapes]
    positions = np.arange(FIRST, FIRST + case.tokens, dtype=np.int32)
    arrays = tuple(target.put(x) for x in hosts)
    return arrays, target.put(np.tile(positions, (case.batch, 1)))


def tried(target: Target, made: Contenders) -> tuple[Contenders, dict[str, str]]:
    """Return what rotates a few tokens as float64 does, and why the rest is not timed."""
    arrays, positions = inputs(target, CHECKED)
    host = target.fetch(positions)
    frequencies = gpu_rivals.ROPE.frequencies(CHECKED.head_dim)
    exact = [formulas.rotate_exact(target.fetch(x), host, frequencies, "half") for x in arrays]
    # Rounding x, cos, sin, two products and their sum to 8 bits: 5 times 2**-8 of the largest pair.
    bound = 5 * 2.0**-8 * max(np.abs(x).max() for x in exact)
    found, missing = {}, {}
    for name, contender in made.items():
        own = tuple(target.copy(x) for x in arrays)  # as some write over their inputs
        try:
            turned = contender.make(positions, own)(own, positions)
            with np.errstate(invalid="ignore"):  # NaN is found below
                hosts = [target.fetch(x).astype(np.float64) for x in turned]
        # A rival raises anything, and the others are timed without it.
        except Exception as error:  # noqa: BLE001  # see above
            missing[name] = " ".join(str(error).split()) or type(error).__name__
            continue
        if [x.shape for x in hosts] != [x.shape for x in exact]:
            missing[name] = f"returns {[x.shape for x in hosts]} for {[x.shape for x in exact]}"
            continue
        off = max(np.abs(x - y).max() for x, y in zip(hosts, exact, strict=True))
        if off <= bound:
            found[name] = contender
        else:
            missing[name] = f"rotates differently: off by {off:.3g}, where {bound:.3g} is rounding"
    return found, missing


def speed(
    target: Target, timed: Clock, made: Contenders, case: Case, repeat: int
) -> list[dict[str, Any]]:
    """Return a row for each contender, forward and forward with backward."""
    arrays, positions = inputs(target, case)
    how, seconds = timed
    copy = gpu_rivals.copies(target, arrays)
    forward: dict[str, Action] = {gpu_bars.COPY: copy}
    backward: dict[str, Action] = {gpu_bars.COPY: copy}
    for name, contender in made.items():
        if len(arrays) == 1 and not contender.alone:
            continue
        function = contender.make(positions, arrays)
        own = tuple(target.copy(x) for x in arrays)  # as some write over their inputs
        forward[name] = lambda function=function, own=own: function(own, positions)
        if contender.gradient:
            both = gpu_rivals.forward_and_backward(target, function, arrays, positions)
            if both is not None:
                backward[name] = both
    rows = []
    for actions, direction, copies in ((forward, "forward", 1), (backward, gpu_bars.BOTH, 2)):
        if len(actions) == 1:  # the copy alone
            continue
        timings = gpu_clock.in_turns(target, seconds, actions, repeat)
        limit = copies * float(np.median([t.seconds for t in timings[gpu_bars.COPY]]))
        for name, taken in timings.items():
            times = [t.seconds for t in taken]
            rows.append(
                {
                    "target": target.name,
                    "contender": name,
                    "direction": direction,
                    **case._asdict(),
                    "bytes": case.bytes,
                    "median_us": float(np.median(times)) * 1e6,
                    "min_us": min(times) * 1e6,
                    "max_us": max(times) * 1e6,
                    "share_of_copy": None
                    if name == gpu_bars.COPY
                    else [limit / max(t, 1e-9) for t in (np.median(times), max(times), min(times))],
                    "timed_by": how,
                    "host_hidden": float(np.mean([t.hidden for t in taken])),
                }
            )
    return rows


def path(target: Target, case: Case) -> str:
    """Return which path of rope_xp runs, and why no faster one does."""
    arrays, positions = inputs(target, case)
    return str(rope_xp.explain(arrays[0], arrays[-1], positions, gpu_rivals.ROPE))


def facts(target: Target, made: Contenders, loops: int) -> dict[str, Any]:
    """Return what one token costs the host, launches and peaks of memory, and errors at 1M."""
    (one, at), (some, positions) = (inputs(target, Case(1, n)) for n in (1, 1024))
    found: dict[str, Any] = {"host_us": {}, "launches": {}, "peak": {}, "largest_error_at_1M": {}}
    for name, contender in made.items():
        function = contender.make(at, one)
        call = lambda f=function: f(one, at)  # noqa: E731  # handed to three clocks
        found["host_us"][name] = gpu_facts.host_microseconds(target, call, loops)
        found["launches"][name] = gpu_facts.launches(target, call)
        many = contender.make(positions, some)
        found["peak"][name] = gpu_facts.peak_over_results(target, lambda f=many: f(some, positions))
        if name in (gpu_rivals.US, gpu_rivals.USUAL, gpu_rivals.USUAL_COMPILED):
            found["largest_error_at_1M"][name] = gpu_facts.largest_error(
                target, lambda p, c=contender: c.make(p, ()), gpu_rivals.ROPE.frequencies(128)
            )
    return found


def report(
    device: str,
    libraries: list[str],
    repeat: int,
    compile_too: bool,
    save: Callable[[dict[str, Any]], None],
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything that was found out, and what is missing by name.

    It is saved after each case, should the next one break off. What was measured before, of other
    libraries, is kept.
    """
    found = before or {"targets": {}, "speed": [], "missing": {}}
    found["machine"] = gpu_facts.machine()
    for library in libraries:
        name = f"{library}:{device}"
        target = targets.find(name) if name in targets.NAMES else f"{library} has no {device}"
        _forget(found, name)
        if isinstance(target, str):
            found["missing"][name] = target
            continue
        made, absent = gpu_rivals.contenders(target, compile_too)
        made, failed = tried(target, made)
        for contender, why in (absent | failed).items():
            found["missing"][f"{name} {contender}"] = why
        own = found["targets"][name] = {"device": gpu_facts.properties(target)}
        timed = gpu_clock.clock_of(target)
        own |= {"before": gpu_facts.readings(), "paths": {}}
        for case in CASES[device]:
            own["paths"]["{} x {} x {}".format(*case)] = path(target, case)
            found["speed"] += speed(target, timed, made, case, repeat)
            save(found)
        own["after"] = gpu_facts.readings()
        own |= facts(target, made, 20 if device == "cpu" else 300)
        save(found)
    return found


def _forget(found: dict[str, Any], name: str) -> None:
    """Drop what was measured of a target before."""
    found["targets"].pop(name, None)
    found["speed"] = [row for row in found["speed"] if row["target"] != name]
    old = [key for key in found["missing"] if key.partition(" ")[0] == name]
    for key in old:
        del found["missing"][key]


def main(arguments: list[str] | None = None) -> int:
    """Run it. Without a GPU, and unless the CPU is asked for, it measures nothing and says so."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu_report")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default %(default)s")
    parser.add_argument("--repeat", type=int, default=30, help="timed calls, default 30")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--add", action="store_true", help="keep what the file has of others")
    parser.add_argument("--out", type=Path, default=Path("gpu_report.json"))
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take all memory
    libraries = options.libraries.split(",")
    if unknown := set(libraries) - set(LIBRARIES):
        parser.error(f"no library is called {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    before = json.loads(options.out.read_text()) if options.add and options.out.exists() else None

    def save(found: dict[str, Any]) -> None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    found = report(options.device, libraries, options.repeat, not options.no_compile, save, before)
    if not found["targets"]:
        for name, why in found["missing"].items():
            print(f"{name}: {why}", file=sys.stderr)
        print("nothing was measured: no library finds a device", file=sys.stderr)
        return 1
    save(found)
    print(gpu_bars.markdown(found))
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
