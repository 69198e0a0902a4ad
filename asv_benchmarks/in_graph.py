"""One token in a graph of torch.compile: what one rotation more takes, by kernels and by inductor.

    taskset -c 0 python -m asv_benchmarks.in_graph torch:cpu
    python -m asv_benchmarks.in_graph torch:gpu

prints microseconds of each forced path, and of the one that is chosen otherwise.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rope_xp
from rope_xp._bench import clock
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import CannotMeasure, Case, find

from .shared import common
from .shared.paths import use_path

CALLS = ["apply", "angles", "usual"]
"""By positions, by angles that are made once in a graph, and the usual formula by positions."""
PATHS = {"torch:cpu": "native", "torch:gpu": "triton"}
ROPE = rope_xp.RoPE(layout="half")
_MORE = 8


class Cell(NamedTuple):
    """The function, and the path that is forced."""

    call: str
    path: str | None


def microseconds(cells: Sequence[Cell], target: str = "torch:cpu") -> list[float]:
    """Return what one rotation more takes in each cell: the best of many, less the best of one.

    Each is of a product of q and k of its own and, but by angles, at positions of its own, as what
    is equal in a graph is computed once. All cells take turns: a machine may be slow for seconds.
    """
    import torch

    torch.compiler.reset()
    case = common.case(target, 1, common.POSITION)
    graphs = [_compiled(case, cell, n) for cell in cells for n in (1, 1 + _MORE)]
    loops, rounds = common.LOOPS
    with torch._dynamo.config.patch(recompile_limit=2 * len(cells)):  # noqa: SLF001  # its name
        turns = [
            [common.best_microseconds(case.target, run, loops, 1) for run in graphs]
            for _ in range(3 * rounds)
        ]
    best = list(map(min, zip(*turns, strict=True)))
    return [(many - one) / _MORE for one, many in zip(best[::2], best[1::2], strict=True)]


def _compiled(case: Case, cell: Cell, rotations: int) -> Action:
    import array_api_compat.torch as xp
    import torch

    def rotate(q: Any, k: Any, positions: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        angles = ROPE.at(positions, like=q) if cell.call == "angles" else None
        for i in range(1, 1 + rotations):
            ends, here = (q * float(i), k * float(i)), positions + i
            if angles is not None:
                results += angles.apply(*ends)
            elif cell.call == "apply":
                results += ROPE.apply(*ends, here)
            else:
                results += [common.rotate_usual(xp, x, here, ROPE.base) for x in ends]
        return tuple(results)

    compiled: Callable[..., tuple[Any, ...]] = torch.compile(rotate, dynamic=False)

    def run() -> tuple[Any, ...]:
        with torch.inference_mode(), use_path(cell.path):
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
        return round(*microseconds([Cell(call, None)]), 2)

    track_microseconds.unit = "us"


def table(target: str) -> str:
    """Return what each path takes as Markdown."""
    find(target)
    paths = (PATHS[target], "portable", None)
    cells = [Cell(call, path) for path in paths for call in CALLS[:2]]
    *ours, usual = map(clock.digits, microseconds([*cells, Cell("usual", None)], target))
    lines = [f"| {target}, one more in a graph, us | by positions | by angles |", "|---|---|---|"]
    for i, path in enumerate(paths):
        lines.append(f"| {path or 'as it is'} | {ours[2 * i]} | {ours[2 * i + 1]} |")
    lines.append(f"| usual formula | {usual} | - |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PATHS:
        sys.exit(f"give one of {', '.join(PATHS)}")
    try:
        print(table(sys.argv[1]), end="")
    except CannotMeasure as error:
        sys.exit(str(error))
