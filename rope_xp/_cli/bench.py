"""Time a call on every installed library, beside a copy of the same arrays and the usual formula.

q and k are those of one attention layer of Llama-3-8B over 4096 tokens, and of one token. Those of
Flux are "--tokens 4608 --heads 24 24", those of Wan "--tokens 131040 --heads 12 12". A rotation
reads and writes as much as a copy does, so 1 times as fast as a copy is as fast as memory allows.
"""

import argparse
import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import TypeAlias

import rope_xp
from rope_xp._bench import clock, formulas
from rope_xp._bench.clock import Spread
from rope_xp._bench.inputs import BASE, DTYPES, HEAD_DIM, HEADS, case
from rope_xp._bench.targets import Target
from rope_xp._cli import arguments, choice, terminal
from rope_xp._cli.choice import Skipped

_COMPILED = ("numpy:cpu", "torch:cpu")
_FOREIGN_BFLOAT16 = ("numpy:cpu", "cupy:gpu", "dask:cpu")
"""Targets whose bfloat16 is that of ml_dtypes."""
_WHY_FASTER_THAN_A_COPY = """\
Above 1 x a copy: memory that is new is filled faster in pages of 2 MB. numpy
asks Linux for them, torch's own allocator does not, and rope_xp does for what
it returns to torch. A copy of numpy runs on one core."""
_LOOPS, _ROUNDS = 200, 5
Heads: TypeAlias = tuple[int, int]
"""Of q and of k."""


@dataclass(frozen=True)
class BenchRow:
    """The figures of one target with arrays of one dtype, over the repeated calls."""

    target: str
    dtype: str
    path: str
    milliseconds: Spread
    """Into new arrays."""
    times_copy: Spread
    """How many times as fast as copying q and k to new arrays."""
    times_usual: Spread
    """How many times as fast as the formula in common use."""
    token_microseconds: Spread
    """Of one token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    choice.add_arguments(parser)
    parser.add_argument(
        "--heads",
        type=arguments.count,
        nargs=2,
        default=HEADS,
        metavar=("Q", "K"),
        help=f"heads of {HEAD_DIM} components; default {HEADS[0]} {HEADS[1]}",
    )


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 where a requested target did not run."""
    tokens, heads = options.tokens, (options.heads[0], options.heads[1])
    chosen, missing = choice.choose_targets(options.backend)
    if not options.json:  # first, as measuring takes a minute
        _print_missing(chosen, missing)

    def build_job(name: str, dtype: str) -> choice.Job[BenchRow]:
        return f"{name} {dtype}", lambda: measure(name, dtype, tokens, options.repeat, heads)

    rows, failed = choice.run_jobs([build_job(t.name, dtype) for t in chosen for dtype in DTYPES])
    problems = [s for s in missing + failed if not s.expected]
    if options.json:
        report = {
            "tokens": tokens,
            "heads": dict(zip(("q", "k"), heads, strict=True)),
            "head_dim": HEAD_DIM,
            "layout": "half",
            "base": BASE,
            "rows": [asdict(row) for row in rows],
            "skipped": [asdict(s) for s in missing + failed],
        }
        print(json.dumps(report, indent=2))
        return 1 if problems else 0
    for s in problems:
        if s in failed:
            print(f"PROBLEM: {s.target}: {s.reason}")
    if rows:
        _print_rows(tokens, heads, rows)
    return 1 if problems else 0


def measure(name: str, dtype: str, tokens: int, repeat: int, heads: Heads) -> BenchRow:
    """Time a target with arrays of one dtype."""
    rope = rope_xp.RoPE(base=BASE, layout="half")
    target, q, k, positions = case(name, tokens, dtype=dtype, heads=heads)
    usual = formulas.usual_formula(target, BASE)
    seconds, copy_seconds, usual_seconds = clock.turns_of_seconds(
        target,
        repeat,
        lambda: rope.apply(q, k, positions),
        lambda: (target.copy(q), target.copy(k)),
        lambda: usual(q, k, positions),
    )
    path = rope_xp.explain(q, k, positions, rope).path
    _, one_q, one_k, one_position = case(name, 1, dtype=dtype, heads=heads)
    microseconds = clock.rounds_of_microseconds(
        target, lambda: rope.apply(one_q, one_k, one_position), _LOOPS, _ROUNDS
    )
    return BenchRow(
        target=name,
        dtype=dtype,
        path=path,
        milliseconds=clock.spread([s * 1e3 for s in seconds]),
        times_copy=clock.times_as_fast(seconds, copy_seconds),
        times_usual=clock.times_as_fast(seconds, usual_seconds),
        token_microseconds=clock.spread(microseconds),
    )


# --- printing ------------------------------------------------------------------------------------


def _print_missing(chosen: list[Target], missing: list[Skipped]) -> None:
    for s in missing:
        print(f"{'' if s.expected else 'PROBLEM: '}{s.target}: {s.reason}")
    for package, hint, loss, affected in (
        ("llvmlite", "pip install llvmlite", "the slower paths run", _COMPILED),
        ("ml_dtypes", "pip install ml_dtypes", "no bfloat16", _FOREIGN_BFLOAT16),
    ):
        names = [target.name for target in chosen if target.name in affected]
        if names and importlib.util.find_spec(package) is None:
            print(f"{package}: not installed ({hint}); {loss}: {', '.join(names)}")


def _print_rows(tokens: int, heads: Heads, rows: list[BenchRow]) -> None:
    """Print the tables, in lines of 80 columns at most."""
    q, k = (f"(1, {tokens}, {count}, {HEAD_DIM})" for count in heads)
    print(f"q {q} and k {k}, layout 'half',")
    print("into new arrays. Figures are median [min, max].")
    many = [
        (row.target, row.dtype, *map(str, (row.milliseconds, row.times_copy, row.times_usual)))
        for row in rows
    ]
    terminal.table(("target", "dtype", "ms", "x a copy", "x the formula"), many, 2)
    print("x a copy: times as fast as copying q and k to new arrays in the same library")
    print("x the formula: times as fast as the formula of Hugging Face's Llama; jax: jitted")
    if any(row.times_copy.median > 1 for row in rows):
        print(_WHY_FASTER_THAN_A_COPY)
    print()
    one = [(row.target, row.dtype, row.path, str(row.token_microseconds)) for row in rows]
    terminal.table(("target", "dtype", "path", "one token, us"), one, 3)
