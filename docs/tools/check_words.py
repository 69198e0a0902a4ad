"""Check the prose of the pages: ``check_words.py`` prints findings and exits with 1.

proselint reads each page without code and formulae. WORDS must appear neither in a page nor in a
docstring or message of FOLDERS. The pages that newcomers read first have short sentences.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("backends/*.md")])
PAGES += sorted([*ROOT.glob("docs/background/*.md"), *ROOT.glob("docs/notebooks/*.ipynb")])
FOLDERS = ("rope_xp", "backends", "asv_benchmarks")
SHORT = {ROOT / "README.md", *ROOT.glob("docs/start*.md")}
LONGEST_MEDIAN = 20  # words in a sentence
PARSER = MarkdownIt("gfm-like", {"linkify": False}).use(dollarmath_plugin)
STYLE = {
    "max_errors": 1000,
    "checks": {
        "dates_times.dates.dash_and_from": False,  # takes 1/8 and 65,536 for dates
        "misc.phrasal_adjectives.ly": False,  # takes multiply-add for an adverb
        "typography.symbols.curly_quotes": False,  # quotes and dots are typed as in code
        "typography.symbols.ellipsis": False,
        **DEFAULT["checks"],
    },
}
WORDS = {
    r"anew": "again",
    r"asked|unasked": "requested, forced",
    r"at hand": "available",
    r"(?:allows?|enables?|permits?) to": "lets you, allows",
    r"beside": "compared with, next to",
    r"born": "made",
    r"kin": "compatible backend",
    r"lone": "single",
    r"long way": "slow path",
    r"mend(?:s|ed|ing)?": "fix",
    r"objections?": "decline reason",
    r"of (?:ours|theirs|one's own)": "our, their, your own",
    r"recipes?": "table key",
    r"refus(?:e|es|ed|ing|al)": "reject, decline",
    r"rooms?": "package; allow for",
    r"(?:t|w)here(?:of|in|to|upon|from|with)|hence|thus": "so",
    r"told": "passed, given",
    r"versed|versine": "cos x - 1",
    r"who(?:m|ever|soever)": "the people who",
}
WORDS = {word.replace(" ", r"\s+"): advice for word, advice in WORDS.items()}
WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
# How a token is read. A link's bracket keeps the title of a page from looking like a sentence.
MARKS = {"softbreak": "\n", "hardbreak": "\n", "link_open": "[", "link_close": "]"}
MARKS |= {"code_inline": "``", "math_inline": "``", "html_inline": ""}
# "What is left is cut." or "Who trains ...": a relative clause without a noun.
NO_NOUN = re.compile(r"(?:What|Who|Whoever|Whatever)\b[^?]*[^?]$")


def read_text(page: Path) -> str:
    """Return a page in Markdown; of a notebook, its cells of words."""
    text = page.read_text("utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def read_page(page: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text without code, and whether it is a paragraph, for each block of a page."""
    line, before = 0, ""
    for token in PARSER.parse(read_text(page)):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            parts = [(MARKS.get(t.type), t.content) for t in token.children or ()]
            text = "".join(content if mark is None else mark for mark, content in parts)
            yield line, text or " ", before == "paragraph_open"
        before = token.type


def read_strings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings and messages of a module."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"``.+?``", "``", node.value)


def find_words(line: int, text: str) -> Iterator[tuple[int, str]]:
    for match in WORD.finditer(text):
        (advice,) = (WORDS[w] for w in WORDS if re.fullmatch(w, match[0], re.IGNORECASE))
        yield line + text.count("\n", 0, match.start()), f"{match[0]}: {advice}"


def find_in_page(page: Path) -> Iterator[tuple[int, str]]:
    lengths = []
    for line, text, is_paragraph in read_page(page):
        yield from find_words(line, text)
        for result in LintFile(str(page), text).lint(STYLE):
            check = result.check_result
            yield line + result.pos[0] - 1, f"{check.check_path}: {check.message}"
        for sentence in re.split(r"(?<=[.!?:])\s+", text) if is_paragraph else ():
            lengths.append(len(sentence.split()))
            if NO_NOUN.match(sentence):
                yield line, f"a relative clause without a noun: {sentence}"
    median = statistics.median(lengths or [0])
    if page in SHORT and median >= LONGEST_MEDIAN:
        yield 1, f"the median sentence has {median:.0f} words, more than {LONGEST_MEDIAN - 1}"


def main() -> int:
    CheckRegistry().register_many(__register__)
    modules = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [(page, *finding) for page in PAGES for finding in find_in_page(page)]
    for module in modules:
        found += [(module, *f) for s in read_strings(module) for f in find_words(*s)]
    for file, line, finding in found:
        print(f"{file.relative_to(ROOT)}:{line}: {finding}")
    print(f"{len(PAGES)} pages, {len(modules)} modules, {len(found)} findings")
    return int(not PAGES or not modules or bool(found))


if __name__ == "__main__":
    sys.exit(main())
