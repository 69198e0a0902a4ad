"""Tables, folded lines and progress for the command line.

Nothing but plain text goes to a file or a pipe.
"""

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

Rows = Sequence[Sequence[str]]
_CLEAR_LINE = "\r\x1b[K"


def table(columns: Sequence[str], rows: Rows, text_columns: int) -> None:
    """Print a table to stdout. The first ``text_columns`` columns hold words, the rest numbers."""
    print(plain_table(columns, rows, text_columns))


def plain_table(columns: Sequence[str], rows: Rows, text_columns: int) -> str:
    """Return a table as lines of aligned text."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def plain_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return lines "name: value" with the values aligned."""
    width = max(len(name) for name, _ in pairs) + 1
    return "\n".join(folded(f"{name + ':':<{width}} ", value, width + 1) for name, value in pairs)


def folded(start: str, text: str, indent: int, stream: TextIO | None = None) -> str:
    """Return a line that begins with ``start``; in a terminal as several lines, where it is long.

    ``indent`` is that of all lines but the first. The stream is stdout, unless told.
    """
    whole = f"{start}{text}".rstrip()
    if not (stream or sys.stdout).isatty():
        return whole
    columns = shutil.get_terminal_size().columns
    # Where names take half of the line, words need the room below them.
    deep = indent if 2 * indent <= columns else 4
    lines = textwrap.wrap(
        text, columns, initial_indent=start, subsequent_indent=" " * deep, break_on_hyphens=False
    )
    return "\n".join(lines) or whole


def fail(command: str, reason: str) -> int:
    """Say on stderr, to a file in one line, why a command stops; return its exit status."""
    line = folded(f"{command}: ", " ".join(reason.split()), 2, sys.stderr)
    print(line, file=sys.stderr)
    return 1


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Name the current step on stderr, in a terminal; call what this yields before each step."""
    started = 0

    def advance(step: str) -> None:
        nonlocal started
        started += 1
        if sys.stderr.isatty():
            print(f"{_CLEAR_LINE}{started} of {steps}: {step}", end="", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        if sys.stderr.isatty():
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
