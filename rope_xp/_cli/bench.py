"""Time a rotation on every installed library, and compare with a copy and the usual formula.

A rotation reads and writes as much as a copy does, so a ratio of 1 means as fast as memory allows.
It can be higher: results of rope_xp lie in pages of 2 MB, and those of torch's allocator do not.
"""

import argparse
from dataclasses import dataclass
from functools import partial

import rope_xp
from rope_xp._bench import clock, formulas
from rope_xp._bench.inputs import BASE, DTYPES, HEAD_DIM, HEADS, case
from rope_xp._cli import choice, terminal

_LOOPS, _ROUNDS = 200, 5


@dataclass(frozen=True)
class BenchRow:
    """The figures of one target, with its speed relative to a copy and to the usual formula."""

    target: str
    dtype: str
    path: str
    milliseconds: clock.Spread
    times_copy: clock.Spread
    times_usual: clock.Spread
    token_microseconds: clock.Spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choice.add_arguments(parser)
    about = f"heads of {HEAD_DIM} components; default {HEADS[0]} {HEADS[1]}"
    add = parser.add_argument
    add("--heads", type=terminal.count, nargs=2, default=HEADS, metavar=("Q", "K"), help=about)


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 where a requested target did not run."""
    tokens, heads = options.tokens, (options.heads[0], options.heads[1])
    chosen, missing = choice.choose_targets(options.backend)
    if not options.json:  # first, as measuring takes a minute
        choice.print_missing(chosen, missing)
    jobs = {
        f"{t.name} {dtype}": partial(measure, t.name, dtype, tokens, options.repeat, heads)
        for t in chosen
        for dtype in DTYPES
    }
    rows, failed = choice.run_jobs(jobs)
    if options.json:
        choice.print_json(tokens, heads, rows, missing + failed)
    else:
        if rows:
            _print_rows(tokens, heads, rows)
        choice.print_missing([], [s for s in failed if not s.expected])
    return int(not all(s.expected for s in missing + failed))


def measure(name: str, dtype: str, tokens: int, repeat: int, heads: tuple[int, int]) -> BenchRow:
    rope = rope_xp.RoPE(base=BASE, layout="half")
    target, q, k, positions = case(name, tokens, dtype=dtype, heads=heads)
    formula = formulas.usual_formula(target, BASE)
    rotate, rotate_usual = (partial(f, q, k, positions) for f in (rope.apply, formula))
    seconds, copy_seconds, usual_seconds = clock.turns_of_seconds(
        target, repeat, rotate, lambda: (target.copy(q), target.copy(k)), rotate_usual
    )
    _, one_q, one_k, one_position = case(name, 1, dtype=dtype, heads=heads)
    microseconds = clock.rounds_of_microseconds(
        target, lambda: rope.apply(one_q, one_k, one_position), _LOOPS, _ROUNDS
    )
    return BenchRow(
        target=name,
        dtype=dtype,
        path=rope_xp.explain(q, k, positions, rope).path,
        milliseconds=clock.spread([s * 1e3 for s in seconds]),
        times_copy=clock.times_as_fast(seconds, copy_seconds),
        times_usual=clock.times_as_fast(seconds, usual_seconds),
        token_microseconds=clock.spread(microseconds),
    )


def _print_rows(tokens: int, heads: tuple[int, int], rows: list[BenchRow]) -> None:
    """Print the tables, in lines of 80 columns at most."""
    q, k = (f"(1, {tokens}, {count}, {HEAD_DIM})" for count in heads)
    terminal.write(f"q {q} and k {k}, layout 'half',")
    terminal.write("into new arrays. Figures are median [min, max].")
    timed_rows = [
        (r.target, r.dtype, *map(str, (r.milliseconds, r.times_copy, r.times_usual))) for r in rows
    ]
    terminal.table(("target", "dtype", "ms", "x a copy", "x the formula"), timed_rows, 2)
    terminal.write("x a copy: time to copy q and k to new arrays in this library / time to rotate")
    terminal.write("x the formula: time of Hugging Face's Llama formula (jax: jitted) / the same")
    terminal.write("")
    token_rows = [(row.target, row.dtype, row.path, str(row.token_microseconds)) for row in rows]
    terminal.table(("target", "dtype", "path", "one token, us"), token_rows, 3)
