"""Tables and progress for the command line: rich where it is installed and a person is looking.

Output that goes to a file or a pipe is plain text, always.
"""

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

Rows = Sequence[Sequence[str]]


def _rich_for(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def table(columns: Sequence[str], rows: Rows, text_columns: int) -> None:
    """Print a table to stdout. The first ``text_columns`` columns hold words, the rest numbers."""
    if not _rich_for(sys.stdout):
        print(plain_table(columns, rows, text_columns))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        grid.add_column(column, justify="left" if i < text_columns else "right")
    for row in rows:
        grid.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(grid)


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
    """Show a bar on stderr; call what this yields with what comes next, before each step."""
    if not _rich_for(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps)
        started = False

        def advance(doing: str) -> None:
            nonlocal started
            bar.update(task, description=doing, advance=1 if started else 0)
            started = True

        yield advance
