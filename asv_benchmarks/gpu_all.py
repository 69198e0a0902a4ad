"""Run everything that needs a GPU, one step after another, whether steps fail or not.

    python -m asv_benchmarks.gpu_all --dry-run
    python -m asv_benchmarks.gpu_all --out found
    python -m asv_benchmarks.gpu_all --out found --only tests-kernels,report-torch --seconds 560

docs/gpu.md says what the steps are for. Each is a command in a process of its own. One that
outlives its limit is interrupted, as by Ctrl-C, and killed 15 seconds later, so that pytest can say
what failed. FOLDER/log.txt has what all of them printed, FOLDER/steps.json how each ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TAIL = 15
"""Lines of each step that are printed here too."""
GRACE_S = 15
"""Seconds between the interrupt of a step and its end."""
SANITIZER_ERROR = 99
"""Exit status of the sanitizer where it finds errors; pytest has 0 to 5."""


class Step(NamedTuple):
    """A command."""

    name: str
    command: list[str]
    expected_s: int
    """A guess."""
    limit_s: int = 540
    environment: dict[str, str] = {}
    verdicts: dict[int, str] = {}
    """Meanings of exit statuses."""


def steps(out: Path) -> list[Step]:
    """Return all steps, in order."""
    python = [sys.executable, "-m"]
    gpu = "gpu and not exhaustive"

    def tests(name: str, marks: str, workers: int, *paths: str) -> list[str]:
        junit = f"--junitxml={out / name}.xml"
        return [*python, "pytest", "-q", "-m", marks, "-n", str(workers), junit, *paths]

    # Compilers take most of the time, on a core each. 12 processes need some 10 GiB of the GPU.
    workers = min(12, os.cpu_count() or 1)
    core = ["tests/core", "tests/benchmarks"]
    found, drawn = str(out / "report.json"), str(out / "report.svg")
    sanitizer = ["compute-sanitizer", "--error-exitcode", str(SANITIZER_ERROR)]
    sanitizer += ["--log-file", str(out / "sanitizer.txt")]
    # The sanitizer takes many times as long: these hand all kinds of arrays to the kernels.
    kernels = ["tests/backends/triton/test_gpu.py", "tests/backends/triton/test_kernel.py"]
    kernels += ["tests/backends/cupy/test_gpu.py"]
    sanitized = tests("sanitizer", f"{gpu} and not unsanitized", 0, *kernels)
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # else torch's reserve hides what is beyond
    verdicts = {SANITIZER_ERROR: "the sanitizer found errors: see sanitizer.txt"}
    verdicts[1] = "tests failed, and the sanitizer found no error"
    report = [*python, "asv_benchmarks.gpu_report", "--add", "--out", found, "--libraries"]
    tune = [*python, "asv_benchmarks.gpu_tune", "--library"]
    return [
        Step("info", [*python, "rope_xp", "info"], 20, 150),  # imports all libraries, from disk
        Step("tests-kernels", tests("tests-kernels", gpu, workers, "tests/backends"), 200),
        Step("tests-core", tests("tests-core", gpu, workers, *core), 300),
        Step("sanitizer", [*sanitizer, *sanitized], 400, environment=uncached, verdicts=verdicts),
        Step("report-torch", [*report, "torch"], 300),
        Step("report-cupy", [*report, "cupy"], 90),
        Step("report-jax", [*report, "jax"], 120),
        Step("graph", [*python, "asv_benchmarks.in_graph", "torch:gpu"], 60),
        Step("tune-torch", [*tune, "torch", "--out", str(out / "tune_torch.json")], 300),
        Step("tune-cupy", [*tune, "cupy", "--out", str(out / "tune_cupy.json")], 150),
        Step("bars", [*python, "asv_benchmarks.gpu_bars", found, str(out / "report.md")], 5, 60),
        Step("picture", [*python, "asv_benchmarks.gpu_picture", found, drawn], 5, 60),
    ]


def run(step: Step, log: Path, seconds: float = math.inf) -> str:
    """Run a step for so many seconds at most, log what it prints, and return how it ended."""
    limit = min(step.limit_s, seconds)
    # A shell starts what runs in its background with this ignored, and steps would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("a") as printed:
        printed.write(f"\n==== {step.name}: {shlex.join(step.command)}\n")
        printed.flush()
        environment = {"PYTHONUNBUFFERED": "1"} | os.environ | step.environment
        try:
            process = subprocess.Popen(  # noqa: S603  # the words are above
                step.command,
                stdout=printed,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,  # so that what it started ends with it
            )
        except OSError as error:
            printed.write(f"{error}\n")
            return f"did not start: {error}"
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return f"ended after {limit:.0f} s"
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()
    return "done" if status == 0 else step.verdicts.get(status, f"exit status {status}")


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a step and all that it started, which may hold the GPU."""
    with contextlib.suppress(ProcessLookupError):  # where all of it has ended
        os.killpg(process.pid, number)


def main(arguments: list[str] | None = None) -> int:
    """Run the requested steps; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu_all")
    parser.add_argument("--out", type=Path, default=Path(".asv/gpu"), metavar="FOLDER")
    parser.add_argument("--only", default="", help="names of steps, with commas between them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all steps together")
    parser.add_argument("--dry-run", action="store_true", help="print the steps, and run none")
    options = parser.parse_args(arguments)
    every = steps(options.out.absolute())
    asked = options.only.split(",") if options.only else [step.name for step in every]
    if unknown := set(asked) - {step.name for step in every}:
        names = ", ".join(step.name for step in every)
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {names}")
    chosen = [step for step in every if step.name in asked]
    if options.dry_run:
        for step in chosen:
            given = [f"{name}={value}" for name, value in step.environment.items()]
            print(f"{step.name}, about {step.expected_s} s, {step.limit_s} s at most:")
            print(f"  {' '.join([*given, shlex.join(step.command)])}")
        print(f"about {sum(step.expected_s for step in chosen) / 60:.0f} minutes; not run")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    log, ends = options.out / "log.txt", options.out / "steps.json"
    ended: dict[str, dict[str, object]] = json.loads(ends.read_text()) if ends.exists() else {}
    deadline = time.perf_counter() + options.seconds
    for step in chosen:
        started = time.perf_counter()
        before = log.stat().st_size if log.exists() else 0
        # A step that is cut takes its grace too.
        left = deadline - started - GRACE_S
        how = run(step, log, left) if left > 0 else "left out for want of time"
        ended[step.name] = {"how": how, "took_s": round(time.perf_counter() - started, 1)}
        ends.write_text(json.dumps(ended, indent=1) + "\n")
        printed = log.read_bytes()[before:] if log.exists() else b""
        lines = printed.decode(errors="replace").splitlines()
        print("\n".join(lines[:2] + lines[2:][-TAIL:]), flush=True)
    print()
    for step in chosen:
        print(f"{step.name}: {ended[step.name]['how']}, {ended[step.name]['took_s']} s")
    return int(any(ended[step.name]["how"] != "done" for step in chosen))


if __name__ == "__main__":
    sys.exit(main())
