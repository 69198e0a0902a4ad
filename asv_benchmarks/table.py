"""Print the tables of docs/benchmarks.md: milliseconds and ratios on the CPU, and one token.

    python -m asv_benchmarks.table
    taskset -c 0 python -m asv_benchmarks.table --decode

Each cell of the first two is median [min, max] of nine turns, of the slower of the layouts half
and interleaved. Each row has a process of its own, as memory that one library has freed makes the
next one's copies faster. The third is of one token, for which one core is the fairest.
"""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from rope_xp._bench import clock
from rope_xp._bench.clock import Spread
from rope_xp._bench.inputs import Absent

from . import common, contenders


@dataclass(frozen=True)
class Column:
    """Two contenders to compare; without a second, the time of the first."""

    head: str
    ours: str
    other: str


MILLISECONDS = "ms"
NEW = (
    Column(MILLISECONDS, "new", "copy"),
    Column("a copy to new arrays", "new", "copy"),
    Column("`jit(x * 2)`", "new", "jit x * 2"),
    Column("the usual formula", "new", "usual"),
    Column("`torch.compile` of it", "new", "torch_compile"),
)
GIVEN = (
    Column(MILLISECONDS, "out", "copy into"),
    Column("copying into them", "out", "copy into"),
    Column("heads first: as in order", "bhsd", "new"),
    Column("part of a projection: as alone", "slice of fused", "slice"),
)
TABLES = {"into new arrays, times as fast as": NEW, "into given arrays, times as fast as": GIVEN}
ROWS = (
    *(("numpy:cpu", dtype) for dtype in ("float32", "float16", "bfloat16")),
    *(("torch:cpu", dtype) for dtype in ("float32", "bfloat16")),
    *(("jax:cpu", dtype) for dtype in ("float32", "bfloat16")),
)


def row(name: str, dtype: str) -> dict[Column, Spread]:
    """Return the figure of each column that a target has, of its slower layout."""
    # A virtual machine gets memory from its host when it first touches it, ten times as slowly as
    # ever after. Whoever allocates next would pay for that.
    np.ones(3 << 27)
    found: dict[Column, Spread] = {}
    for layout in ("half", "interleaved"):
        for column in (*NEW, *GIVEN):
            try:
                target, *pair = contenders.pair(name, layout, dtype, column.ours, column.other)
            except Absent:
                continue
            mine, theirs = clock.turns_of_seconds(target, common.REPEAT, *pair)
            if column.head == MILLISECONDS:
                made = clock.spread([seconds * 1e3 for seconds in mine])
                found[column] = max(found.get(column, made), made, key=_median)
            else:
                made = clock.times_as_fast(mine, theirs)
                found[column] = min(found.get(column, made), made, key=_median)
    return found


def _median(spread: Spread) -> float:
    return spread.median


def tables() -> str:
    """Return milliseconds and ratios as Markdown, a table for new memory and one for given."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        found = list(pool.map(row, *zip(*ROWS, strict=True)))
    return "\n".join(_table(text, columns, found) for text, columns in TABLES.items())


def _table(text: str, columns: tuple[Column, ...], found: list[dict[Column, Spread]]) -> str:
    heads = " | ".join(column.head for column in columns)
    lines = [f"| {text} | {heads} |", "|---" * (len(columns) + 1) + "|"]
    for (name, dtype), made in zip(ROWS, found, strict=True):
        if made.keys() & set(columns):
            cells = " | ".join(str(made.get(column, "-")) for column in columns)
            lines.append(f"| {name.removesuffix(':cpu')} {dtype} | {cells} |")
    return "\n".join(lines) + "\n"


def decode_table() -> str:
    """Return the microseconds of one token as Markdown."""
    lines = ["| one token, us | rope_xp | usual formula | transformers |", "|---|---|---|---|"]
    for name in dict(ROWS):
        cells = [_decode(name, key) for key in ("new", "usual", "transformers")]
        lines.append(f"| {name.removesuffix(':cpu')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _decode(name: str, key: str) -> str:
    try:
        target, _, call = contenders.pair(name, "half", "float32", "new", key, 1, common.POSITION)
    except Absent:
        return "-"
    return str(clock.spread(clock.rounds_of_microseconds(target, call)))


if __name__ == "__main__":
    print(decode_table() if "--decode" in sys.argv else tables(), end="")
