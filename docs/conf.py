"""Configuration of Sphinx, and what is generated before the pages are read."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import re
import sys
import textwrap
import tomllib
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

sys.path.insert(0, str(HERE / "tools"))  # for mathml.py
extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"rope_xp {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
templates_path: list[str] = []

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

nb_execution_mode = "off"  # outputs are stored; .ci/run executes the cells
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Pages of optional modules can be built where what they import is not installed.
autodoc_mock_imports = [name for name in ("onnx", "torch") if not importlib.util.find_spec(name)]
autodoc_member_order = "bysource"
# Names that signatures show as they are; "Types in signatures" in api.md describes most of them.
autodoc_type_aliases = {
    name: name
    for name in ("Array", "ArrayLike", "Device", "Layout", "Module", "Namespace", "Positions")
} | {"ArrayT": "Array", "ModelT": "Module", "Rope": "RoPE"}
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_param = False  # types in numpydoc are prose, and not names to be linked word by word
napoleon_use_rtype = False
python_maximum_signature_line_length = 88

nitpicky = True
# Classes of other packages, whose pages cannot be linked without a network.
nitpick_ignore_regex = [
    ("py:class", r"(collections|numpy|onnx|os|torch)\..+|ArrayLike|Module|Tensor")
]

# Pages outside docs/ that are shown inside, and where links to them lead from here.
PAGES = {
    "repository/CONTRIBUTING": ROOT / "CONTRIBUTING.md",
    "repository/CHANGELOG": ROOT / "CHANGELOG.md",
    "repository/SECURITY": ROOT / "SECURITY.md",
    "repository/add_a_backend": ROOT / "backends" / "README.md",
}
LINKS = {path.relative_to(ROOT).as_posix(): f"{name}.md" for name, path in PAGES.items()}
# Maintainers read these in the repository.
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
LINKS |= {name: f"{SOURCE}/blob/main/{name}" for name in ("README.md", "RELEASING.md")}

OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:README\.md|tests/)[^)]*)\)")

# Pages below others in the sidebar, which stays short.
BELOW = {
    "start": ("start_torch", "start_arrays", "notebooks/torch", "notebooks/jax"),
    "models": ("notebooks/huggingface", "diffusion", "layers", "distributed", "onnx"),
    "check": ("vectors", "scoreboard"),
    "need": ("compare", "faq"),
    "speed": ("gpu",),
    "api": ("backends", "repository/CHANGELOG", "repository/SECURITY"),
    "how_it_works": ("repository/CONTRIBUTING", "repository/add_a_backend"),
}

FIGURE = re.compile(r"(?<=\| )([\d.]+e-)(\d+)(?= \|)")
NAME = re.compile(r"\[`([\w.]+)`\]\((?:\.\./)?api\.md(?:#[\w-]+)?\)")


def shown_inside(text: str) -> str:
    """Return a page of the repository with its links as they are in these pages."""

    def target(match: re.Match[str]) -> str:
        link = match.group(1).removeprefix("../")
        link = LINKS.get(link, link.removeprefix("docs/"))
        return f"]({link if '://' in link else f'../{link}'}{match.group(2) or ''})"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", target, text)


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


def generate(_app: Sphinx) -> None:
    """Write what the reference quotes; docs/tools/remake.py makes all else, which is committed."""
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / "command_line.txt").write_text(command_line_help(), encoding="utf-8")


def read(_app: Sphinx, page: str, source: list[str]) -> None:
    """Turn the plain Markdown of a page into what Sphinx makes the most of."""
    if page in PAGES:
        source[0] = shown_inside(PAGES[page].read_text("utf-8"))
    else:
        source[0] = OUTSIDE.sub(rf"]({SOURCE}/blob/main/\1)", source[0])
    if page in BELOW:
        names = "\n".join(f"/{name}" for name in BELOW[page])
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    # A link to the reference whose words are a name leads to that name, and fails if there is none.
    source[0] = NAME.sub(r"{py:obj}`\1 <.\1>`", source[0]).replace("<.rope_xp.", "<rope_xp.")
    # A figure stays on one line of its cell: a hyphen joined to what follows is no place to break.
    source[0] = FIGURE.sub("\\1\u2060\\2", source[0])
    # The blank line that doctest needs between an example's output and the fence.
    source[0] = source[0].replace("\n\n```\n", "\n```\n")


def annotate(_app: Sphinx, function: object, _bound: bool) -> None:
    """Replace annotations by their source text, in which autodoc finds the aliases above."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError):  # written by dataclass, or not in Python
        return
    if isinstance(node, ast.FunctionDef):
        texts = {arg.arg: arg.annotation for arg in ast.walk(node) if isinstance(arg, ast.arg)}
        function.__annotations__ = {
            name: ast.unparse(text).strip("'").replace("NDArray[np.float64]", "np.ndarray")
            for name, text in {**texts, "return": node.returns}.items()
            if text
        }


def name_aliases(_app: Sphinx, *event: object) -> tuple[str | None, ...]:
    """Return a signature and its result with aliases by name, also within other types."""
    pattern = re.compile(r"~?TypeAliasForwardRef\('(\w+)'\)")
    return tuple(text and pattern.sub(r"\1", text) for text in event[-2:])


def setup(app: Sphinx) -> None:
    """Generate before any page is read."""
    app.connect("builder-inited", generate)
    app.connect("source-read", read)
    app.connect("autodoc-before-process-signature", annotate)
    app.connect("autodoc-process-signature", name_aliases)
