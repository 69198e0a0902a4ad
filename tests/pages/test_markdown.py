"""Pages show where they lie: links have words and lead somewhere, and there are no roles."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import markdown

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("backends/*.md")])
DRAWN = sorted((ROOT / "docs" / "drawn").iterdir())
# What a forge shows as its source: the reference is made of docstrings, the index names the pages.
SPHINX_ALONE = {"docs/api.md": {"eval-rst", "literalinclude"}, "docs/index.md": {"toctree"}}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere_and_have_words(page: Path) -> None:
    text = page.read_text("utf-8")
    problems = {link: markdown.problem(link, page, text) for link in markdown.links(text)}
    assert {link.target: why for link, why in problems.items() if why} == {}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nothing_shows_as_something_else(page: Path) -> None:
    text = page.read_text("utf-8")
    assert markdown.roles(text) == []
    assert markdown.bold_powers(text) == []
    assert set(markdown.directives(text)) - SPHINX_ALONE.get(name(page), set()) == set()


def test_the_readme_and_the_pages_are_read() -> None:
    found = [name(page) for page in PAGES]
    assert {"README.md", "docs/index.md", "docs/api.md", "backends/README.md"} <= set(found)


@pytest.mark.parametrize("picture", DRAWN, ids=lambda path: path.name)
def test_pictures_are_shown_small_and_without_background(picture: Path) -> None:
    target = f"drawn/{picture.name}"
    shown = [link.target for page in PAGES for link in markdown.links(page.read_text("utf-8"))]
    assert target in shown
    assert picture.suffix == ".svg"
    text = picture.read_text("utf-8")
    assert len(text) < 150_000
    assert "#ffffff" not in text
    assert "<image" not in text


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    listed = {link.target for link in markdown.links(index)}
    lines = set(index.splitlines())
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "index.md":
            assert page.name in listed
            assert page.stem in lines  # of a toctree


# --- what these tests would notice ---------------------------------------------------------------

BAD = {
    "[](docs/api.md)": "no words",
    "[words]()": "no target",
    "[words](docs/no_page.md)": "no such file",
    "[words](docs/api.md#no-heading)": "no such heading",
    "[words](#no-heading)": "no such heading",
    "![alt](docs/_generated/x.svg)": "a file that is not kept",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_with_a_link(text: str) -> None:
    (link,) = markdown.links(text)
    assert markdown.problem(link, ROOT / "README.md", text) == BAD[text]


GOOD = (
    "[`code`](docs/api.md)",
    "[words\nover lines](docs/api.md#rotate)",
    "[words](https://arxiv.org/abs/2104.09864)",
    "# A heading, `x`\n\n[words](#a-heading-x)",
    "# Twice\n\n# Twice\n\n[words](#twice-1)",
)


@pytest.mark.parametrize("text", GOOD)
def test_what_is_right_with_a_link(text: str) -> None:
    (link,) = markdown.links(text)
    assert markdown.problem(link, ROOT / "README.md", text) is None


def test_what_only_sphinx_shows() -> None:
    assert markdown.roles("see {class}`~rope_xp.RoPE`, {py:func}`x`") == ["{class}`", "{py:func}`"]
    assert markdown.roles("`` {class}`x` `` and {base} `x`\n\n```text\n{func}`x`\n```\n") == []
    page = (
        "```{figure} x.png\n:alt: y\n```\n\n```python\n{1}\n```\n\n````{note}\n```sh\n```\n````\n"
    )
    assert markdown.directives(page) == ["figure", "note"]
    assert markdown.links("```\n[](x.md)\n```\n`[](y.md)`") == []


def test_powers_that_become_bold() -> None:
    assert markdown.bold_powers("| below 2**22\nand 2**31 |") == ["below 2**22\nand 2**31"]
    assert markdown.bold_powers("| 2**22 | 2**31 |\n\n`2**22` and `2**31`\n- 2**3\n- 2**4") == []
