"""One token: what a warm call runs, counted, and what it takes beside what else there is.

Counts do not vary with the machine. The time of one token is that of the call itself.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import rope_xp
from rope_xp._bench import clock, contenders, formulas
from rope_xp._bench.clock import Action

from . import common

LIBRARIES = ["numpy:cpu", "torch:cpu", "jax:cpu", "cupy:gpu", "torch:gpu"]
RIVALS = ["usual", "transformers"]
ROPE = rope_xp.RoPE(layout="half")


def functions_run(target: str) -> list[str]:
    """Return the file of each Python function that a warm call runs."""
    case = common.case(target, 1, common.POSITION)
    for _ in range(2):
        ROPE.apply(case.q, case.k, case.positions)
    files: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        ROPE.apply(case.q, case.k, case.positions)
    finally:
        sys.setprofile(None)
    return files


class Counts:
    version = "1"
    params = (LIBRARIES,)
    param_names = ("library",)

    def setup(self, library: str) -> None:
        common.case(library, 1, common.POSITION)

    def track_python_calls(self, library: str) -> int:
        return len(functions_run(library))

    def track_files(self, library: str) -> int:
        return len({name for name in functions_run(library) if "rope_xp" in name})

    track_python_calls.unit = "calls"
    track_files.unit = "files"


class Times:
    version = "1"
    params = (LIBRARIES[:3], RIVALS)
    param_names = ("library", "rival")

    def setup(self, library: str, rival: str) -> None:
        with common.skipping():
            self.target, *self.calls = contenders.pair(
                library, "half", "float32", "new", rival, 1, common.POSITION
            )

    def track_time_over_rival(self, library: str, rival: str) -> float:
        ours, theirs = (
            clock.best_microseconds(self.target, call, *common.LOOPS) for call in self.calls
        )
        return common.over(ours, theirs)

    track_time_over_rival.unit = "times"


CALLS = ["apply", "angles", "usual"]
"""By positions, by angles that are made once in a graph, and the usual formula by positions."""
_MORE = 8


def in_graph(call: str) -> list[float]:
    """Return microseconds of one rotation more in a graph of ``torch.compile``, of some rounds.

    Each is of a product of q and k of its own, as results of one graph that are equal are shared.
    """
    case = common.case("torch:cpu", 1, common.POSITION)
    graphs = [_compiled(case, call, rotations) for rotations in (1, 1 + _MORE)]
    loops, rounds = common.LOOPS
    found = []
    for _ in range(rounds):
        one, many = (clock.best_microseconds(case.target, run, loops, 1) for run in graphs)
        found.append((many - one) / _MORE)
    return found


def _compiled(case: Any, call: str, rotations: int) -> Action:
    import array_api_compat.torch as xp
    import torch

    def rotate(q: Any, k: Any, positions: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        angles = ROPE.at(positions, like=q) if call == "angles" else None
        for i in range(1, 1 + rotations):
            ends = q * float(i), k * float(i)
            if angles is not None:
                results += angles.apply(*ends)
            elif call == "apply":
                results += ROPE.apply(*ends, positions)
            else:
                results += [formulas.usual_rotate(xp, x, positions, ROPE.base) for x in ends]
        return tuple(results)

    compiled: Callable[..., tuple[Any, ...]] = torch.compile(rotate, dynamic=False)

    def run() -> tuple[Any, ...]:
        with torch.inference_mode():
            return compiled(case.q, case.k, case.positions)

    return run


class InGraph:
    version = "1"
    params = (CALLS,)
    param_names = ("call",)
    timeout = 300

    def setup(self, call: str) -> None:
        common.case("torch:cpu", 1, common.POSITION)

    def track_microseconds(self, call: str) -> float:
        return round(statistics.median(in_graph(call)), 2)

    track_microseconds.unit = "us"
