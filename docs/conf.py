"""Configuration of Sphinx, and what is generated before the pages are read."""

from __future__ import annotations

import html
import importlib.util
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import rope_xp

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
GENERATED = HERE / "_generated"

project = "rope_xp"
author = "the rope_xp authors"
project_copyright = f"{author}, Apache-2.0"
release = version = rope_xp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"rope_xp {release}"
templates_path: list[str] = []

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

# Pages of optional modules can be built where what they import is not installed.
autodoc_mock_imports = [name for name in ("onnx", "torch") if not importlib.util.find_spec(name)]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types and shapes, which no annotation can
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_param = False  # types in numpydoc are prose, and not names to be linked word by word
napoleon_use_rtype = False
python_maximum_signature_line_length = 88

nitpicky = True

# Pages outside docs/ that are shown inside: file, and where their links lead from here.
PAGES = {
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "releasing.md": ROOT / "RELEASING.md",
    "security.md": ROOT / "SECURITY.md",
    "add_a_backend.md": ROOT / "backends" / "README.md",
}
LINKS = {
    "backends/README.md": "backends.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
}


def shown_inside(text: str) -> str:
    """Return a page of the repository with its links as they are in these pages."""

    def target(match: re.Match[str]) -> str:
        link = match.group(1).removeprefix("../")
        return f"]({LINKS.get(link, link.removeprefix('docs/'))})"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)\)", target, text)


def libraries_table() -> str:
    """Return the libraries with a backend of their own, from the table that dispatch reads."""
    from rope_xp._libraries import LIBRARIES

    lines = ["| library | recognised by | paths, fastest first | install |", "|---|---|---|---|"]
    for library in LIBRARIES:
        paths = ", ".join(f"`{path}`" for path in (*library.paths, "portable"))
        extra = f"`rope-xp[{library.extra}]`" if library.extra else "required"
        array = ", ".join(f"`{library.name}.{name}`" for name, _ in library.arrays)
        lines.append(f"| {library.name} | {array} | {paths} | {extra} |")
    lines.append(
        "| any other of the standard | `__array_namespace__` | `portable` | nothing more |"
    )
    return "\n".join(lines) + "\n"


def command_line_help() -> str:
    """Return what the commands print for --help."""
    from rope_xp.__main__ import COMMANDS, main

    printed = io.StringIO()
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        printed.write(f"$ python -m rope_xp {' '.join(arguments)}\n")
        try:
            with redirect_stdout(printed):
                main(arguments)
        except SystemExit:
            printed.write("\n")
    return printed.getvalue()


def generate(_app: Sphinx | None = None) -> None:
    """Write pictures, tables and the pages from outside to _generated."""
    sys.path[:0] = [str(HERE), str(HERE / "examples")]
    import accuracy_table
    import history_pictures
    import paper_pictures
    import pictures
    import position_pictures
    import rooms_picture
    import rule_pictures
    import tiny_results

    pictures.write(GENERATED)
    rule_pictures.write(GENERATED)
    position_pictures.write(GENERATED)
    paper_pictures.write(GENERATED)
    rooms_picture.write(GENERATED)
    history_pictures.draw(GENERATED / "history.png")
    tiny = json.loads((HERE / "train_tiny.json").read_text("utf-8"))
    tiny_results.draw(tiny, GENERATED / "train_tiny.png")
    texts = {name: shown_inside(path.read_text("utf-8")) for name, path in PAGES.items()}
    texts["accuracy.md"] = accuracy_table.table()
    texts["train_tiny.md"] = tiny_results.markdown(tiny)
    texts["libraries.md"] = libraries_table()
    texts["command_line.txt"] = command_line_help()
    for name, text in texts.items():
        (GENERATED / name).write_text(text, encoding="utf-8")


def publish_history(app: Sphinx, error: Exception | None) -> None:
    """Put asv's own site beside the pages, or a page that says why it is absent."""
    if error is not None or app.builder.format != "html":
        return
    import asv_site

    to = Path(app.outdir) / "history"
    if reason := asv_site.publish(to):
        to.mkdir(exist_ok=True)
        (to / "index.html").write_text(f"<p>Not built here: {html.escape(reason)}.</p>", "utf-8")


def close_examples(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Drop the blank line that doctest needs between an example's output and the fence."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")


def setup(app: Sphinx) -> None:
    """Generate before any page is read."""
    app.connect("builder-inited", generate)
    app.connect("source-read", close_examples)
    app.connect("build-finished", publish_history)
