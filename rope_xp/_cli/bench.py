"""Time a call on every installed library, beside a copy of the same arrays and the usual formula.

q and k are those of one attention layer of Llama-3-8B over 4096 tokens, and of one token. Those of
Flux are "--tokens 4608 --heads 24 24", those of Wan "--tokens 131040 --heads 12 12". A rotation
reads and writes as much as a copy, so a share of 1 is as fast as memory allows.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import rope_xp
from rope_xp._bench import clock, contenders
from rope_xp._bench.inputs import BASE, DTYPES, HEAD_DIM, HEADS, Absent, case
from rope_xp._cli import arguments, choice, plots, terminal
from rope_xp._cli.choice import Skipped
from rope_xp._contract.errors import RopeError

_WIDTH = 20
"""Characters of a bar that is as long as a copy."""
_LOOPS, _ROUNDS = 200, 5
Heads: TypeAlias = tuple[int, int]
"""Of q and of k."""


@dataclass(frozen=True)
class Row:
    """What one target did with arrays of one dtype."""

    target: str
    dtype: str
    path: str
    milliseconds: float
    """Into new arrays."""
    share_of_copy: float
    """Time to copy q and k to new arrays, divided by the time to rotate them."""
    times_usual: float
    """How many times as fast as the formula in common use."""
    token_microseconds: float
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
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the shares of a copy")


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 where something asked for did not run."""
    tokens, heads = options.tokens, (options.heads[0], options.heads[1])
    rows, skipped = measure(tokens, options.repeat, options.backend, heads)
    if options.json:
        print(json.dumps(_as_json(tokens, heads, rows, skipped), indent=2))
    else:
        _print(tokens, heads, rows, skipped)
    if options.plot is not None:
        try:
            with plots.picture(options.plot) as (axes,):
                draw(axes, rows)
        except (RopeError, OSError) as error:
            return terminal.fail("bench", str(error))
    return 1 if any(not s.expected for s in skipped) else 0


def measure(
    tokens: int, repeat: int, libraries: list[str] | None, heads: Heads
) -> tuple[list[Row], list[Skipped]]:
    """Time every target that is there, or all of the libraries named."""
    targets, skipped = choice.choose(libraries)
    rows: list[Row] = []
    with terminal.progress(len(targets) * len(DTYPES)) as advance:
        for target in targets:
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
    seconds, copy_seconds, usual_seconds = clock.best_seconds(target, repeat, ours, copy, usual)
    _, q, k, positions = case(name, tokens, dtype=dtype, heads=heads)
    path = rope_xp.explain(q, k, positions, base=BASE, layout="half").path
    del q, k, ours, copy, usual  # the next ones take their memory
    _, token, _ = contenders.pair(name, "half", dtype, "new", "copy", 1, heads=heads)
    return Row(
        target=name,
        dtype=dtype,
        path=path,
        milliseconds=seconds * 1e3,
        share_of_copy=copy_seconds / seconds,
        times_usual=usual_seconds / seconds,
        token_microseconds=clock.best_microseconds(target, token, _LOOPS, _ROUNDS),
    )


def bar(share: float) -> str:
    """Return a bar as long as a share, with a mark where a copy is."""
    filled = min(round(share * _WIDTH), 2 * _WIDTH)
    cells = ["#" if i < filled else " " for i in range(max(filled, _WIDTH) + 1)]
    cells[_WIDTH] = "|"
    return "".join(cells).rstrip()


def draw(axes: Any, rows: list[Row]) -> None:
    """Draw the shares of a copy, a bar for each row, and a line where a copy is."""
    names = [f"{row.target} {row.dtype}\n{row.path}" for row in rows]
    colours = [plots.STYLES[1 + DTYPES.index(row.dtype)][0] for row in rows]
    bars = axes.barh(names, [row.share_of_copy for row in rows], color=colours, height=0.7)
    axes.bar_label(bars, fmt="%.2f", padding=3, size=8)
    axes.axvline(1, color=plots.INK, linestyle="--", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("speed as a share of copying q and k to new arrays (1 is a copy)")


# --- printing ------------------------------------------------------------------------------------


def _print(tokens: int, heads: Heads, rows: list[Row], skipped: list[Skipped]) -> None:
    q, k = (f"(1, {tokens}, {count}, {HEAD_DIM})" for count in heads)
    print(f"q {q} and k {k}, layout 'half', into new arrays")
    columns = ("target", "dtype", "path", "share of a copy", "", "time", "usual", "one token")
    cells = [
        (
            row.target,
            row.dtype,
            row.path,
            bar(row.share_of_copy),
            f"{row.share_of_copy:.2f}",
            f"{row.milliseconds:.2f} ms",
            f"{row.times_usual:.1f} x",
            f"{row.token_microseconds:.0f} us",
        )
        for row in rows
    ]
    terminal.table(columns, cells, text_columns=4)
    print(
        "share of a copy: time to copy q and k in the same library, divided by the time to rotate "
        "them;\n  | is a copy\nusual: how many times as fast as the formula in common use"
    )
    for s in skipped:
        print(f"{'' if s.expected else 'PROBLEM: '}{s.target}: {s.reason}")


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
