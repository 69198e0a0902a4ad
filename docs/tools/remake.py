"""Draw every picture of the pages, and write what is made of code or data into them.

    python docs/tools/remake.py [--check]

Pictures go to docs/drawn. In a page, what stands between ``<!-- made: WHAT -->`` and
``<!-- end -->`` is made: a table of TABLES, or a part of an example. So is a measured figure before
``<!-- from: WHAT -->``, which figures.py describes. All are committed, so that pages can be read
where they lie. With --check nothing is written; the exit status is 1 if anything would be.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
PAGES = TOOLS.parent
ROOT = PAGES.parent
DRAWN = PAGES / "drawn"
sys.path[:0] = [str(TOOLS), str(PAGES / "examples")]

import architecture_picture
import cache_picture
import figure_tables
import figures
import history_pictures
import libraries_table
import needle
import norm_picture
import paper_pictures
import pictures
import position_pictures
import rule_pictures
import speed_picture
import tiny_results
from marks import FIGURE, MADE

NEEDLE = json.loads((TOOLS / "needle.json").read_text("utf-8"))
TINY = json.loads((TOOLS / "train_tiny.json").read_text("utf-8"))
TABLES = {
    **figure_tables.TABLES,
    "history": history_pictures.table,
    "libraries": libraries_table.table,
    "needle": lambda: needle.format_markdown(NEEDLE),
    "train_tiny": lambda: tiny_results.markdown(TINY),
}
PART = re.compile(r'(\S+), from "(.+)" to "(.+)"')


def draw(folder: Path) -> None:
    """Draw all pictures."""
    for one in (
        pictures,
        rule_pictures,
        position_pictures,
        paper_pictures,
        architecture_picture,
        speed_picture,
        norm_picture,
        cache_picture,
    ):
        one.write(folder)
    history_pictures.draw(folder / "history.svg")
    tiny_results.draw(TINY, folder / "train_tiny.svg")


def made(what: str) -> str:
    """Return what belongs between the marks."""
    part = PART.fullmatch(what)
    if not part:
        return TABLES[what]()
    path, start, end = part.groups()
    text = (PAGES / path).read_text("utf-8")
    first = text.index(f"\n{start}")
    last = text.index(f"\n{end}", first + 1)
    return f"```python\n{text[first:last].strip()}\n```\n"


def with_made(page: str) -> str:
    """Return a page with everything between marks, and every figure before one, made anew."""
    if lost := re.findall(r"(?<!`)<!-- from:[^\n]*", FIGURE.sub("", page)):
        raise ValueError(f"no figure right before {lost}")
    # Blank lines, or Markdown takes what follows for a part of the comment.
    page = MADE.sub(lambda found: f"{found[1]}\n{made(found[2])}\n{found[3]}", page)
    return FIGURE.sub(lambda found: f"{figures.say(found[2])}{found[1]}", page)


def files() -> dict[Path, bytes]:
    """Return what each file that is made should hold."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        held = {DRAWN / path.name: path.read_bytes() for path in Path(folder).iterdir()}
    pages = [*ROOT.glob("*.md"), ROOT / "backends" / "README.md"]
    pages += [*PAGES.glob("*.md"), *PAGES.glob("background/*.md")]
    for page in sorted(pages):
        text = page.read_text("utf-8")
        if MADE.search(text) or "<!-- from:" in text:
            held[page] = with_made(text).encode()
    return held


def main(*, check: bool) -> int:
    """Write or compare; return the exit status."""
    wanted = files()
    stale = [path for path in DRAWN.glob("*") if path not in wanted]
    stale += [
        path for path, held in wanted.items() if not path.exists() or path.read_bytes() != held
    ]
    for path in stale:
        print(path.relative_to(PAGES.parent))
        if not check:
            _write(path, wanted.get(path))
    return int(check and bool(stale))


def _write(path: Path, held: bytes | None) -> None:
    if held is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held)


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
