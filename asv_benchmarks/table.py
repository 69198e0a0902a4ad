"""Print the tables of docs/speed.md: every ratio on the CPU, and what one token takes.

    python -m asv_benchmarks.table
    taskset -c 0 python -m asv_benchmarks.table --decode

Each cell of the first is the smaller figure of the layouts half and interleaved: two contenders in
turns, best of nine each. Each column has a process of its own, as memory that one library has freed
makes the next one's copies faster. The second is of one token, for which one core is the fairest.
"""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from rope_xp._bench import clock, contenders
from rope_xp._bench.inputs import Absent

from . import common

ROWS = (
    ("into given arrays, share of copying into them", "out", "copy into"),
    ("into new arrays, share of copying to new ones", "new", "copy"),
    ("into new arrays, share of `jit(x * 2)`", "new", "jit x * 2"),
    ("views with heads first, share of the speed in order", "bhsd", "new"),
    ("q in a fused projection in place, share of the speed alone", "slice of fused", "slice"),
    ("times as fast as the usual formula", "new", "usual"),
    ("times as fast as `torch.compile` of it", "new", "torch_compile"),
)
COLUMNS = (
    *(("numpy:cpu", dtype) for dtype in ("float32", "float16", "bfloat16")),
    *(("torch:cpu", dtype) for dtype in ("float32", "bfloat16")),
    *(("jax:cpu", dtype) for dtype in ("float32", "bfloat16")),
)


def column(name: str, dtype: str) -> dict[str, float]:
    """Return the ratio of each row that a target has."""
    # A virtual machine gets memory from its host when it first touches it, ten times as slowly as
    # ever after. Whoever allocates next would pay for that.
    np.ones(3 << 27)
    least: dict[str, float] = {}
    for layout in ("half", "interleaved"):
        for text, ours, other in ROWS:
            try:
                target, *pair = contenders.pair(name, layout, dtype, ours, other)
            except Absent:
                continue
            mine, theirs = clock.best_seconds(target, common.REPEAT, *pair)
            least[text] = min(least.get(text, theirs / mine), theirs / mine)
    return least


def table() -> str:
    """Return the ratios as Markdown."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        columns = list(pool.map(column, *zip(*COLUMNS, strict=True)))
    heads = [f"{name.removesuffix(':cpu')} {dtype}" for name, dtype in COLUMNS]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for text, *_ in ROWS:
        cells = [_number(made[text]) if text in made else "-" for made in columns]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}"


def decode_table() -> str:
    """Return the microseconds of one token as Markdown."""
    lines = ["| one token, us | rope_xp | usual formula | transformers |", "|---|---|---|---|"]
    for name in dict(COLUMNS):
        cells = [_decode(name, key) for key in ("new", "usual", "transformers")]
        lines.append(f"| {name.removesuffix(':cpu')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _decode(name: str, key: str) -> str:
    try:
        target, _, call = contenders.pair(name, "half", "float32", "new", key, 1, common.POSITION)
    except Absent:
        return "-"
    return f"{clock.best_microseconds(target, call):.0f}"


if __name__ == "__main__":
    print(decode_table() if "--decode" in sys.argv else table(), end="")
