"""Print tables, folded lines and progress.

A file or a pipe gets plain, unfolded text.
"""

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

_CLEAR_LINE = "\r\x1b[K"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """Print a table to stdout. The first ``text_columns`` columns hold words, the rest numbers."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligns = "<" * text_columns + ">" * (len(columns) - text_columns)
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        padded = (f"{c:{a}{w}}" for c, a, w in zip(row, aligns, widths, strict=True))
        print("  ".join(padded).rstrip())


def plain_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return lines "name: value" with the values aligned."""
    width = max(len(name) for name, _ in pairs) + 1
    return "\n".join(folded(f"{name + ':':<{width}} ", value, width + 1) for name, value in pairs)


def print_list(title: str, sentences: Sequence[str]) -> None:
    """Print sentences below a title, one in a line."""
    print(f"\n{title}:")
    for sentence in sentences:
        print(folded("- ", sentence, 2))


def folded(start: str, text: str, indent: int, stream: TextIO | None = None) -> str:
    """Return a line that begins with ``start``, folded where the stream is a terminal.

    ``indent`` is that of all lines but the first. The default stream is stdout.
    """
    line = f"{start}{text}".rstrip()
    if not (stream or sys.stdout).isatty():
        return line
    columns = shutil.get_terminal_size().columns
    # Names that take half of the line would leave too little of it for values.
    space = " " * (indent if 2 * indent <= columns else 4)
    lines = textwrap.wrap(
        text, columns, initial_indent=start, subsequent_indent=space, break_on_hyphens=False
    )
    return "\n".join(lines) or line


def fail(command: str, reason: str) -> int:
    """Print to stderr why a command stops, in one line of a file; return its exit status."""
    print(folded(f"{command}: ", " ".join(reason.split()), 2, sys.stderr), file=sys.stderr)
    return 1


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that names the current step on stderr, if that is a terminal."""
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
