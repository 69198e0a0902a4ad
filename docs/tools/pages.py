"""Find the pages that are checked, and read their words."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("backends/*.md")])
PAGES += sorted(ROOT.glob("docs/background/*.md"))
PAGES += sorted(ROOT.glob("docs/notebooks/*.ipynb"))


def read_text(page: Path) -> str:
    """Return a page in Markdown; of a notebook, its cells of words."""
    text = page.read_text("utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)
