"""Print the table of docs/speed.md: every ratio on the CPU, measured side by side.

    python -m asv_benchmarks.table
    taskset -c 0 python -m asv_benchmarks.table --decode

Each cell of the first is the smaller figure of the layouts half and interleaved. The second is of
one token, for which one core is enough and the fairest.
"""

import sys

from rope_xp import _targets

from . import contenders, dispatch

ROWS = (
    ("into given arrays, share of copying into them", "out", "copy into"),
    ("into new arrays, share of copying to new ones", "new", "copy"),
    ("into new arrays, share of `jit(x * 2)`", "new", "jit x * 2"),
    ("times as fast as the usual formula", "new", "usual"),
    ("times as fast as `torch.compile` of it", "new", "compiled"),
    ("views with heads first, share of the speed in order", "bhsd", "new"),
    ("q in a fused projection in place, share of the speed alone", "slice of fused", "slice"),
)
COLUMNS = {
    "numpy:cpu": ("float32", "float16", "bfloat16"),
    "torch:cpu": ("float32", "bfloat16"),
    "jax:cpu": ("float32", "bfloat16"),
}


def column(name: str, dtype: str) -> dict[str, str]:
    """Return a cell for each row that a target has."""
    cells: dict[str, str] = {}
    least: dict[str, float] = {}
    for layout in ("half", "interleaved"):
        target, actions = contenders.contenders(name, layout, dtype)
        seconds = dict(
            zip(
                actions,
                _targets.best_seconds(target, contenders.REPEAT, *actions.values()),
                strict=True,
            )
        )
        for text, ours, other in ROWS:
            if ours in actions and other in actions:
                least[text] = min(least.get(text, float("inf")), seconds[other] / seconds[ours])
    for text, value in least.items():
        cells[text] = f"{value:.2f}" if value < 2 else f"{value:.1f}"
    return cells


def table() -> str:
    """Return the ratios as Markdown."""
    columns = {
        f"{name.removesuffix(':cpu')} {dtype}": column(name, dtype)
        for name, dtypes in COLUMNS.items()
        for dtype in dtypes
    }
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for text, *_ in ROWS:
        cells = [made.get(text, "-") for made in columns.values()]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def decode_table() -> str:
    """Return the microseconds of one token as Markdown."""
    lines = ["| one token, us | rope_xp | usual formula | transformers |", "|---|---|---|---|"]
    for name in COLUMNS:
        times = dispatch.decode(name)
        cells = (
            f"{times[key]:.0f}" if key in times else "-" for key in ("apply", "usual", "llama")
        )
        lines.append(f"| {name.removesuffix(':cpu')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(decode_table() if "--decode" in sys.argv else table(), end="")
