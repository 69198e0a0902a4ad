"""Print the tables behind the thresholds of the CPU paths, as in docs/speed.md.

    python -m asv_benchmarks.thresholds

Set a constant to the size from which on the choice that it guards is the better one here.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
from rope_xp_backends import _chunks, _cpu, _threads

import rope_xp
from rope_xp import _targets

ROPE = rope_xp.RoPE(layout="half")
ROUNDS = 9


def rotation(tokens: int, path: str) -> Callable[[], tuple]:
    """Return a call that rotates q of 32 and k of 8 heads into given memory."""
    q, k = (np.ones((1, tokens, heads, 128), np.float32) for heads in (32, 8))
    out, positions = (np.empty_like(q), np.empty_like(k)), np.arange(tokens)

    def call() -> tuple:
        with rope_xp.use_backend(path):
            return ROPE.apply(q, k, positions, out=out)

    return call


def microseconds(*calls: Callable[[], tuple]) -> list[float]:
    """Return the best time of each call, in turns, each a loop of about a millisecond."""
    target = _targets.find("numpy:cpu")
    loops = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        loops.append(max(int(1e-3 / (time.perf_counter() - start)), 1))

    def looped(call: Callable[[], tuple], n: int) -> Callable[[], tuple]:
        def run() -> tuple:
            for _ in range(n):
                call()
            return ()

        return run

    actions = [looped(call, n) for call, n in zip(calls, loops, strict=True)]
    seconds = _targets.best_seconds(target, ROUNDS, *actions)
    return [s / n * 1e6 for s, n in zip(seconds, loops, strict=True)]


def setting(
    module: object, name: str, value: int, call: Callable[[], tuple]
) -> Callable[[], tuple]:
    """Return a call made with a constant of a module set."""

    def run() -> tuple:
        with mock.patch.object(module, name, value):
            return call()

    return run


def threads() -> str:
    """BYTES_A_THREAD: when a second thread pays."""
    most = _threads.limit()
    lines = [f"| q and k, KiB | 1 thread, us | {most} threads, us |", "|---|---|---|"]
    for tokens in (1, 4, 8, 16, 32, 64, 256, 1024):
        call = rotation(tokens, "numba")
        size = tokens * 40 * 128 * 4
        one = setting(_cpu, "BYTES_A_THREAD", 2 * size, call)
        all_ = setting(_cpu, "BYTES_A_THREAD", size // most, call)
        lines.append("| {} | {:.0f} | {:.0f} |".format(size // 1024, *microseconds(one, all_)))
    return "\n".join(lines)


def chunks() -> str:
    """CHUNK_BYTES and CHUNKS_A_THREAD: how much numpy rotates at once."""
    lines = ["| chunk, KiB | 4096 tokens, ms |", "|---|---|"]
    sizes = [1 << n for n in range(16, 24)]
    call = rotation(4096, "chunked")
    calls = [setting(_chunks, "CHUNK_BYTES", size, call) for size in sizes]
    for size, time_us in zip(sizes, microseconds(*calls), strict=True):
        lines.append(f"| {size // 1024} | {time_us / 1000:.1f} |")
    return "\n".join(lines)


def compiling() -> str:
    """BYTES_TO_COMPILE_FOR: what numba gains at a call, and what it costs a process."""
    lines = ["| q and k, KiB | numpy in chunks, us | numba, us |", "|---|---|---|"]
    for tokens in (1, 16, 64, 256, 1024, 4096):
        times = microseconds(rotation(tokens, "chunked"), rotation(tokens, "numba"))
        lines.append("| {} | {:.0f} | {:.0f} |".format(tokens * 20, *times))
    imported = best_of(
        5, "from rope_xp_backends.kernels import numba", "import rope_xp_backends.numpy"
    )
    compiled = best_of(
        5,
        "from rope_xp_backends.kernels import numba; numba.compiled('float32', False, False)",
        "from rope_xp_backends.kernels import numba",
    )
    costs = f"Once a process: importing numba {imported:.2f} s; each kernel {compiled:.2f} s."
    return "\n".join([*lines, "", costs])


def best_of(repeat: int, code: str, without: str) -> float:
    """Return the seconds that a process takes longer with some code than with other code."""

    def run(text: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", text], check=True)  # noqa: S603  # our own text
        return time.perf_counter() - start

    return min(run(code) for _ in range(repeat)) - min(run(without) for _ in range(repeat))


if __name__ == "__main__":
    for part in (threads, chunks, compiling):
        print(f"{part.__doc__}\n\n{part()}\n")
