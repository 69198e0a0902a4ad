"""Numbers from the command line; tables, folded lines and progress for a terminal.

Lines are folded to the width of the terminal, in a file to 80 columns.
"""

import argparse
import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

_CLEAR_LINE = "\r\x1b[K"


# argparse names these two in its errors: "invalid count value".
def count(text: str) -> int:
    """Return an integer that is at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def positive(text: str) -> float:
    """Return a positive finite number."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive and finite, got {text}")
    return value


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """Print a table to stdout. The first ``text_columns`` columns hold words, the rest numbers."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = [
            f"{cell:{'<' if i < text_columns else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def plain_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return lines "name: value" with the values aligned."""
    width = max(len(name) for name, _ in pairs) + 1
    return "\n".join(folded(f"{name + ':':<{width}} ", value, width + 1) for name, value in pairs)


def print_list(title: str, sentences: Sequence[str]) -> None:
    """Print sentences below a title, one in a line; nothing where there are none."""
    if sentences:
        print(f"\n{title}:")
    print_lines(sentences, "- ")


def print_lines(lines: Iterable[str], start: str = "") -> None:
    """Print folded lines that begin with ``start``."""
    for line in lines:
        print(folded(start, line, 2))


def folded(start: str, text: str, indent: int) -> str:
    """Return a line that begins with ``start``, folded; all lines but the first are indented."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    # Names that take half of the line would leave too little of it for values.
    space = " " * (indent if 2 * indent <= columns else 4)
    wrapper = textwrap.TextWrapper(columns, start, space, break_on_hyphens=False)
    return "\n".join(wrapper.wrap(text)) or start.rstrip()


def fail(command: str, reason: str) -> int:
    """Print to stderr why a command stops, in a file as one line; return its exit status."""
    start, text = f"{command}: ", " ".join(reason.split())
    print(folded(start, text, 2) if sys.stderr.isatty() else start + text, file=sys.stderr)
    return 1


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that names the current step on stderr, if that is a terminal."""
    numbers = itertools.count(1)

    def show(text: str) -> None:
        if sys.stderr.isatty():
            print(f"{_CLEAR_LINE}{text}", end="", file=sys.stderr, flush=True)

    try:
        yield lambda step: show(f"{next(numbers)} of {steps}: {step}")
    finally:
        show("")
