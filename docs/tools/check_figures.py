"""Find figures that come from nowhere: ``python docs/tools/check_figures.py`` exits with 1 then.

A figure of speed, accuracy or memory, in a page or a docstring of FOLDERS, is either made by
remake.py from docs/measurements.json, or allowed in figures_allowed.toml with a reason: a bound
that a named test holds, a definition, a fact of others. What stands in code is not read. Words may
wrap anywhere in a page; a test is given as "FILE: CODE", and the file holds that code.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pages
from marks import FIGURE, MADE
from pages import ROOT, read_text

ALLOWED = Path(__file__).with_name("figures_allowed.toml")
# The changelog says what was true once.
PAGES = sorted({*pages.PAGES, *ROOT.glob("docs/*/*.md")} - {ROOT / "CHANGELOG.md"})
FOLDERS = ("rope_xp",)

CODE = re.compile(
    r"^```.*?^```|^\$\$.*?^\$\$|``.+?``|`[^`\n]+`|\$[^$\n]+\$|\]\([^)]*\)|<!--.*?-->"
    r"|^\s*(?:>>>|\.\.\.) .*?$",
    re.DOTALL | re.MULTILINE,
)
WORDS = r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
NUMBER = r"(?<![\w.*^-])\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = (
    r"(?:[un]?s|µs|ms|(?:micro|milli|nano)?seconds?|minutes?|hours?"
    r"|[KMG]i?B(?:/s)?|kB|%|percent|per\s+cent|ulps?)"
)
MORE = r"(?:as|faster|slower|smaller|larger|longer|shorter|more|less|better|worse)"
PARTS = r"(?:half|third|quarter|fifth|sixth|eighth|tenth|hundredth|thousandth)s?"
FOUND = re.compile(
    rf"{NUMBER}\s?{UNITS}(?!\w)"
    r"|(?<![\w.*^-])\d[\d.]*e-\d+"
    rf"|{NUMBER}x(?!\w)"
    rf"|(?:{NUMBER}|\b{WORDS})\s+times\s+{MORE}\b"
    rf"|\b{WORDS}\s+{UNITS}(?!\w)"
    r"|\b(?:twice|half)\s+as\s+(?:fast|slow|long|large|exact)\b"
    r"|\bhalf\s+(?:the|its)\s+(?:time|speed|error|memory)\b"
    rf"|\b(?:a|an|one|two|three)\s+{PARTS}\s+(?:of\s+(?:the|a|its)\s+\w*(?:time|speed|error|memory|second)|as|larger|faster|slower|less|more)\b"
    rf"|\bfactors?\s+of\s+(?:{NUMBER}|{WORDS})\b",
    re.IGNORECASE,
)
MEASURED = re.compile(r"\b(?:ms|us|ns|MiB|KiB|MB|GB/s|ulp|times as|errors?)\b|%")
CELL = re.compile(r"\|\s*\**(\d[\d.,]*(?:e-\d+)?)\**\s*(?=\|)")


class Entry(NamedTuple):
    """Words around a figure, and why they may stand in a page."""

    text: str
    pattern: re.Pattern[str]


def blank(found: re.Match[str]) -> str:
    """Return as much space as was found, on as many lines."""
    return re.sub(r"[^\n]", " ", found[0])


def find_in_text(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each figure in Markdown or a docstring that no program wrote."""
    for pattern in (MADE, FIGURE, CODE):
        text = pattern.sub(blank, text)
    yield from (found.span() for found in FOUND.finditer(text))
    for table in re.finditer(r"^(\|.*)\n\|[-| :]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE):
        if MEASURED.search(table[1]):
            yield from (
                (table.start(2) + cell.start(1), table.start(2) + cell.end(1))
                for cell in CELL.finditer(table[2])
            )


def find_unknown(text: str, allowed: list[Entry], used: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and words of each figure that no entry allows; note which entries allow one."""
    spans = [(entry, found.span()) for entry in allowed for found in entry.pattern.finditer(text)]
    for start, end in sorted(set(find_in_text(text))):
        here = {e.text for e, (first, last) in spans if first <= start and end <= last}
        used |= here
        if not here:
            words = " ".join(text[max(start - 40, 0) : end + 40].split())
            yield text.count("\n", 0, start) + 1, f"{text[start:end]!r} in {words!r}"


def read_docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text


def read_allowed() -> tuple[list[Entry], list[str]]:
    """Return the entries, and what is wrong with them."""
    entries, wrong = [], []
    for held in tomllib.loads(ALLOWED.read_text("utf-8"))["figure"]:
        words = map(re.escape, held["text"].split())
        entries.append(Entry(held["text"], re.compile(r"\s+".join(words))))
        file, _, code = held.get("test", "").partition(": ")
        if not file and not held.get("why"):
            wrong.append(f"{held['text']!r} has no reason")
        if file and code not in (ROOT / file).read_text("utf-8"):
            wrong.append(f"{held['text']!r}: {file} does not hold {code!r}")
    return entries, wrong


def main() -> int:
    """Print what was found; return the exit status."""
    allowed, wrong = read_allowed()
    used: set[str] = set()
    texts = [(page, 0, read_text(page)) for page in PAGES]
    for module in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        texts += [(module, line - 1, text) for line, text in read_docstrings(module)]
    count = 0
    for file, before, text in texts:
        for line, words in find_unknown(text, allowed, used):
            print(f"{file.relative_to(ROOT)}:{before + line}: {words}")
            count += 1
    wrong += [f"{entry.text!r} allows nothing" for entry in allowed if entry.text not in used]
    print(*(f"{ALLOWED.name}: {text}" for text in wrong), sep="\n")
    print(f"{len(texts)} texts, {count} figures from nowhere")
    return int(not texts or bool(count or wrong))


if __name__ == "__main__":
    sys.exit(main())
