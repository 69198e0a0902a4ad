"""Arguments from the command line, and all that is printed: lines, tables and JSON.

Only this module prints, so that no name or value of a file reaches the terminal unescaped.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import IO, Any, NoReturn

_LONGEST = 4000
"""Characters of a text that are printed; nobody reads more."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors may name any file."""

    def error(self, message: str) -> NoReturn:
        super().error(escape(message))


def escape(text: str) -> str:
    """Return text with escapes, like those of ``repr``, for all that could steer a terminal."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write(*lines: str, file: IO[str] | None = None) -> None:
    for line in lines:
        print(escape(line), file=file)


def write_json(report: dict[str, Any], **options: Any) -> None:
    """Print one JSON object, in which all but printable ASCII is escaped."""
    print(json.dumps(report, indent=2, **options).replace("\x7f", r"\u007f"))


# argparse names it in its errors: "invalid count value".
def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """Print a table to stdout. The first ``text_columns`` columns hold words, the rest numbers."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = [
            f"{cell:{'<' if i < text_columns else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        write("  ".join(cells).rstrip())


def write_list(title: str, sentences: Sequence[str]) -> None:
    """Print sentences below a title, one in a line; nothing where there are none."""
    if sentences:
        write("", f"{title}:", *(f"- {sentence}" for sentence in sentences))


def fail(command: str, reason: str, status: int = 1) -> int:
    """Print to stderr why a command stops, in one line; return its exit status."""
    write(f"{command}: {' '.join(reason.split())}", file=sys.stderr)
    return status
