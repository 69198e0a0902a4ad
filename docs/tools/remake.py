"""Draw every picture of the pages, and write what is made of code or data into them.

    python docs/tools/remake.py [--check]

Pictures go to docs/drawn. In a page, what stands between ``<!-- made: WHAT -->`` and
``<!-- end -->`` is made: a table of TABLES. All are committed. With
--check nothing is written; the exit status is 1 if anything would be.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
PAGES = TOOLS.parent
ROOT = PAGES.parent
DRAWN = PAGES / "drawn"
sys.path[:0] = [str(TOOLS), str(PAGES / "examples")]

import figure_tables
import pictures

MADE = re.compile(r"(<!-- made: (.+) -->\n)(?:.*\n)*?(<!-- end -->)")


def with_made(page: str) -> str:
    """Return a page with everything between marks made anew."""
    # Blank lines, or Markdown takes what follows for a part of the comment.
    return MADE.sub(
        lambda found: f"{found[1]}\n{figure_tables.TABLES[found[2]]()}\n{found[3]}", page
    )


def files() -> dict[Path, bytes]:
    """Return what each file that is made should hold."""
    with tempfile.TemporaryDirectory() as folder:
        pictures.write(Path(folder))
        held = {DRAWN / path.name: path.read_bytes() for path in Path(folder).iterdir()}
    pages = [*ROOT.glob("*.md"), ROOT / "backends" / "README.md"]
    pages += [*PAGES.glob("*.md"), *PAGES.glob("background/*.md")]
    for page in sorted(pages):
        text = page.read_text("utf-8")
        if MADE.search(text):
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
