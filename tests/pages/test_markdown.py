"""Pages show where they lie: links have words and lead somewhere, and there are no roles."""

from pathlib import Path

import pytest
from support import markdown

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("backends/*.md")])
# What a forge shows as its source: the reference is made of docstrings, the index names the pages.
SPHINX_ALONE = {"docs/api.md": {"eval-rst", "literalinclude"}, "docs/index.md": {"toctree"}}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere_and_nothing_shows_as_something_else(page: Path) -> None:
    text = page.read_text("utf-8")
    problems = {link: markdown.problem(link, page, text) for link in markdown.links(text)}
    assert {link.target: why for link, why in problems.items() if why} == {}
    assert markdown.roles(text) == []
    assert markdown.bold_powers(text) == []
    assert set(markdown.directives(text)) - SPHINX_ALONE.get(name(page), set()) == set()


def test_pictures_are_shown_small_and_without_background() -> None:
    shown = [link.target for page in PAGES for link in markdown.links(page.read_text("utf-8"))]
    for picture in (ROOT / "docs" / "drawn").iterdir():
        assert f"drawn/{picture.name}" in shown
        assert picture.suffix == ".svg"
        text = picture.read_text("utf-8")
        assert len(text) < 150_000, picture
        assert "#ffffff" not in text, picture
        assert "<image" not in text, picture


def test_every_page_is_in_the_navigation() -> None:
    lines = set((ROOT / "docs" / "index.md").read_text("utf-8").splitlines())
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= lines  # of a toctree


# --- what these tests would notice ---------------------------------------------------------------

PROBLEMS = {
    "[](docs/api.md)": "no words",
    "[words]()": "no target",
    "[words](docs/no_page.md)": "no such file",
    "[words](docs/api.md#no-heading)": "no such heading",
    "[words](#no-heading)": "no such heading",
    "![alt](docs/_generated/x.svg)": "a file that is not kept",
    "[`code`](docs/api.md)": None,
    "[words\nover lines](docs/api.md#rotate)": None,
    "[words](https://arxiv.org/abs/2104.09864)": None,
    "# A heading, `x`\n\n[words](#a-heading-x)": None,
    "# Twice\n\n# Twice\n\n[words](#twice-1)": None,
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_wrong_with_a_link(text: str) -> None:
    (link,) = markdown.links(text)
    assert markdown.problem(link, ROOT / "README.md", text) == PROBLEMS[text]


def test_what_only_sphinx_shows() -> None:
    assert markdown.roles("see {class}`~rope_xp.RoPE`, {py:func}`x`") == ["{class}`", "{py:func}`"]
    assert markdown.roles("`` {class}`x` `` and {base} `x`\n\n```text\n{func}`x`\n```\n") == []
    assert markdown.directives("```{figure} x.png\n```\n\n````{note}\n```sh\n```\n````\n") == [
        *("figure", "note")
    ]
    assert markdown.links("```\n[](x.md)\n```\n`[](y.md)`") == []
    assert markdown.bold_powers("| below 2**22\nand 2**31 |\n- `2**3` and `2**4`") != []
