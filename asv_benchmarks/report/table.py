"""Print the tables of docs/speed_details.md: many tokens, one token, and what engines run.

    python -m asv_benchmarks.report.table
    taskset -c 0 python -m asv_benchmarks.report.table --decode
    python -m asv_benchmarks.report.table --engines

Each cell of the first two is median [min, max] of nine turns, of the slower of the layouts half
and interleaved. Each row has a process of its own, as memory that one library has freed makes the
next one's copies faster. The third is of one token, for which one core is the fairest. The last
compares calls in place with what engines for inference run, on one core: the best of nine turns.
"""

import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import rope_xp
from asv_benchmarks.shared import common, contenders, rival_calls
from rope_xp._bench import clock, inputs
from rope_xp._bench.clock import Action, Spread
from rope_xp._bench.inputs import CannotMeasure
from rope_xp._bench.targets import Target
from rope_xp._core.typing import Layout


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
            except CannotMeasure:
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
    found = in_processes(row, ROWS)
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
    except CannotMeasure:
        return "-"
    return str(clock.spread(clock.rounds_of_microseconds(target, call)))


ENGINES = (
    ("operator in C++ as engines write it, in place", "engine", "torch:cpu"),
    ("`torch.onnx.ops.rotary_embedding`, given cos and sin", "torch_onnx", "torch:cpu"),
    ("usual formula", "usual", "torch:cpu"),
    ("", "usual", "numpy:cpu"),
    ("onnxruntime's `RotaryEmbedding`, given cos and sin", "onnxruntime", "numpy:cpu"),
    ("`mlx.core.fast.rope`", "mlx", "numpy:cpu"),
)
"""What the page calls a rival, its name here, and where rope_xp is called."""
SIZES = {"1": (1, 1), "32 x 1": (32, 1), "512": (1, 512), "4096": (1, 4096)}
"""Sequences and tokens of each."""
ROUND_S = 2e-3


def engine_cells(rival: str, name: str, dtype: str, layout: Layout) -> list[str]:
    """Return how many times as fast rope_xp is in place, for each of SIZES."""
    try:
        pairs = [_engine_pair(rival, name, dtype, layout, *size) for size in SIZES.values()]
    except CannotMeasure:
        return []
    return [clock.digits(_best_ratio(*pair)) for pair in pairs]


def _engine_pair(
    rival: str, name: str, dtype: str, layout: Layout, sequences: int, tokens: int
) -> tuple[Target, Action, Action]:
    case = inputs.case(name, sequences * tokens, common.POSITION, dtype)
    given, target = rival_calls.setting(case, layout), case.target
    reshape, sizes = target.backend.xp.reshape, (sequences, tokens)
    arrays = tuple(reshape(x, (*sizes, *x.shape[2:])) for x in given.arrays)
    given = given._replace(arrays=arrays, positions=reshape(given.positions, sizes))
    function = rival_calls.RIVALS[rival].make(given)
    own, theirs = (tuple(map(target.copy, arrays)) for _ in range(2))
    rope = rope_xp.RoPE(base=inputs.BASE, layout=layout)
    return (
        target,
        lambda: rope.apply(*own, given.positions, out=own),
        lambda: function(theirs, given.positions),
    )


def _best_ratio(target: Target, ours: Action, theirs: Action) -> float:
    (once,) = clock.best_seconds(target, 3, ours)
    loops = max(int(ROUND_S / once), 1)

    def seconds(action: Action) -> float:
        start = time.perf_counter()
        for _ in range(loops):
            results = action()
        clock.wait(target, results)
        return time.perf_counter() - start

    mine, others = clock.take_turns(seconds, common.REPEAT, (ours, theirs))
    return min(others) / min(mine)


def engines_table() -> str:
    """Return as Markdown how many times as fast calls in place are on one core."""
    heads = ["rope_xp in place is times as fast as", "in", "dtype", "layout", *SIZES]
    rows = [
        (text, rival, name, dtype, layout)
        for text, rival, name in ENGINES
        for dtype, layout in itertools.product(common.DTYPES, rival_calls.RIVALS[rival].layouts)
    ]
    found = in_processes(engine_cells, [row[1:] for row in rows], _stay_on_one_core)
    lines = [
        [text, name.removesuffix(":cpu"), dtype, layout, *cells]
        for (text, _, name, dtype, layout), cells in zip(rows, found, strict=True)
        if cells
    ]
    made = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in made) + "\n"


def _stay_on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def in_processes(
    function: Callable[..., Any],
    rows: Sequence[tuple[str, ...]],
    prepare: Callable[[], None] | None = None,
) -> list[Any]:
    """Call a function for each row, in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, prepare, max_tasks_per_child=1) as pool:
        return list(pool.map(function, *zip(*rows, strict=True)))


if __name__ == "__main__":
    made = {"--decode": decode_table, "--engines": engines_table}.get("".join(sys.argv[1:]), tables)
    print(made(), end="")
