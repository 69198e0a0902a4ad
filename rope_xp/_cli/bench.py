"""Time a call on every installed library, beside a copy of the same arrays and the usual formula.

q and k are those of one attention layer of Llama-3-8B over 4096 tokens, and of one token. Those of
Flux are "--tokens 4608 --heads 24 24", those of Wan "--tokens 131040 --heads 12 12". A rotation
reads and writes as much as a copy does, so 1 times as fast as a copy is as fast as memory allows.
"""

import argparse
import importlib.util
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import rope_xp
from rope_xp._bench import clock, contenders
from rope_xp._bench.clock import Spread
from rope_xp._bench.inputs import BASE, DTYPES, HEAD_DIM, HEADS, Absent, case
from rope_xp._bench.targets import Target
from rope_xp._cli import arguments, choice, plots, terminal
from rope_xp._cli.choice import Skipped
from rope_xp._contract.errors import RopeError

_COMPILED = ("numpy:cpu", "torch:cpu")
_OWN_BFLOAT16 = ("torch", "jax")
_LOOPS, _ROUNDS = 200, 5
Heads: TypeAlias = tuple[int, int]
"""Of q and of k."""


@dataclass(frozen=True)
class Row:
    """What one target did with arrays of one dtype. Spreads are those of the repeated calls."""

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
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the speeds")


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 where something asked for did not run."""
    tokens, heads = options.tokens, (options.heads[0], options.heads[1])
    here, missing = choice.choose(options.backend)
    if not options.json:  # before what takes a minute
        _print_missing(here, missing)
    rows, skipped = measure(here, tokens, options.repeat, heads)
    if options.json:
        print(json.dumps(_as_json(tokens, heads, rows, missing + skipped), indent=2))
    else:
        _print(tokens, heads, rows, skipped)
    if options.plot is not None:
        try:
            with plots.picture(options.plot, len(_DRAWN)) as axes:
                draw(axes, rows)
        except (RopeError, OSError) as error:
            return terminal.fail("bench", str(error))
    return 1 if any(not s.expected for s in missing + skipped) else 0


def measure(
    here: list[Target], tokens: int, repeat: int, heads: Heads
) -> tuple[list[Row], list[Skipped]]:
    """Time targets, and say what did not run."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with terminal.progress(len(here) * len(DTYPES)) as advance:
        for target in here:
            for dtype in DTYPES:
                advance(f"{target.name} {dtype}")
                try:
                    rows.append(_row(target.name, dtype, tokens, repeat, heads))
                except Absent as error:
                    skipped.append(Skipped(f"{target.name} {dtype}", str(error), expected=True))
                # A GPU may be full, or a driver not fit. That must not stop the others.
                except (RopeError, RuntimeError, MemoryError, ImportError) as error:
                    skipped.append(Skipped(f"{target.name} {dtype}", str(error), expected=False))
    return rows, skipped


def _row(name: str, dtype: str, tokens: int, repeat: int, heads: Heads) -> Row:
    target, ours, usual = contenders.pair(name, "half", dtype, "new", "usual", tokens, heads=heads)
    _, _, copy = contenders.pair(name, "half", dtype, "new", "copy", tokens, heads=heads)
    seconds, of_copy, of_usual = clock.turns_of_seconds(target, repeat, ours, copy, usual)
    _, q, k, positions = case(name, tokens, dtype=dtype, heads=heads)
    path = rope_xp.explain(q, k, positions, base=BASE, layout="half").path
    del q, k, ours, copy, usual  # the next ones take their memory
    _, token, _ = contenders.pair(name, "half", dtype, "new", "copy", 1, heads=heads)
    return Row(
        target=name,
        dtype=dtype,
        path=path,
        milliseconds=clock.spread([s * 1e3 for s in seconds]),
        times_copy=clock.times_as_fast(seconds, of_copy),
        times_usual=clock.times_as_fast(seconds, of_usual),
        token_microseconds=clock.spread(
            clock.rounds_of_microseconds(target, token, _LOOPS, _ROUNDS)
        ),
    )


_DRAWN = {"times_copy": "a copy of q and k", "times_usual": "the formula in common use"}


def draw(grid: list[Any], rows: list[Row]) -> None:
    """Draw how many times as fast as each of the others, a bar for each row with its spread."""
    names = [f"{row.target} {row.dtype}\n{row.path}" for row in rows]
    colours = [plots.STYLES[1 + DTYPES.index(row.dtype)][0] for row in rows]
    for axes, (field, other) in zip(grid, _DRAWN.items(), strict=True):
        found: list[Spread] = [getattr(row, field) for row in rows]
        middles = [f.median for f in found]
        spans = [
            [f.median - f.least for f in found],
            [f.most - f.median for f in found],
        ]
        bars = axes.barh(names, middles, xerr=spans, color=colours, height=0.7, ecolor=plots.INK)
        axes.bar_label(bars, labels=[clock.digits(m) for m in middles], padding=3, size=8)
        axes.axvline(1, color=plots.INK, linestyle="--", linewidth=0.8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_xlabel(f"times as fast as {other}")


# --- printing ------------------------------------------------------------------------------------


def _print_missing(here: list[Target], missing: list[Skipped]) -> None:
    for s in missing:
        print(f"{'' if s.expected else 'PROBLEM: '}{s.target}: {s.reason}")
    without = {
        ("llvmlite", "pip install 'rope-xp[llvmlite]'", "the slower paths run"): _COMPILED,
        ("ml_dtypes", "pip install ml_dtypes", "no bfloat16"): [
            target.name for target in here if target.library not in _OWN_BFLOAT16
        ],
    }
    for (package, hint, loss), names in without.items():
        hit = [target.name for target in here if target.name in names]
        if hit and importlib.util.find_spec(package) is None:
            print(f"{package}: not installed ({hint}); {loss}: {', '.join(hit)}")


def _print(tokens: int, heads: Heads, rows: list[Row], skipped: list[Skipped]) -> None:
    for s in skipped:
        if not s.expected:
            print(f"PROBLEM: {s.target}: {s.reason}")
    if rows:
        print("\n".join(_lines(tokens, heads, rows)))


def _lines(tokens: int, heads: Heads, rows: list[Row]) -> list[str]:
    """Return the tables, in lines of 80 columns at most."""
    q, k = (f"(1, {tokens}, {count}, {HEAD_DIM})" for count in heads)
    many = [
        (row.target, row.dtype, *map(str, (row.milliseconds, row.times_copy, row.times_usual)))
        for row in rows
    ]
    one = [(row.target, row.dtype, row.path, str(row.token_microseconds)) for row in rows]
    lines = [
        f"q {q} and k {k}, layout 'half',",
        "into new arrays. Figures are median [min, max].",
        # No table of rich, whose rules and padding make it wider than 80 columns.
        terminal.plain_table(("target", "dtype", "ms", "x a copy", "x the formula"), many, 2),
        "x a copy: times as fast as copying q and k to new arrays in the same library",
        "x the formula: times as fast as the formula of Hugging Face's Llama; jax: jitted",
    ]
    if any(row.times_copy.median > 1 for row in rows):
        lines += [
            "Above 1 x a copy: memory that is new is filled faster in pages of 2 MB. numpy",
            "asks Linux for them, torch's own allocator does not, and rope_xp does for what",
            "it returns to torch. A copy of numpy runs on one core.",
        ]
    return [*lines, "", terminal.plain_table(("target", "dtype", "path", "one token, us"), one, 3)]


def _as_json(tokens: int, heads: Heads, rows: list[Row], skipped: list[Skipped]) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "heads": dict(zip(("q", "k"), heads, strict=True)),
        "head_dim": HEAD_DIM,
        "layout": "half",
        "base": BASE,
        "rows": [asdict(row) for row in rows],
        "skipped": [asdict(s) for s in skipped],
    }
