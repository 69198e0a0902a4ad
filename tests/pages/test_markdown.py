"""Pages show where they lie: links have words and lead somewhere, and there are no roles."""

import functools
import re
from pathlib import Path

import pytest

pytest.importorskip("mdit_py_plugins")
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

ROOT = Path(__file__).parents[2]
FOLDERS = ("", "docs/", "docs/background/", "backends/")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}*.md"))
# What a forge shows as its source: the reference is made of docstrings, the index names the pages.
SPHINX_ALONE = {"docs/api.md": {"eval-rst", "toctree"}}
SPHINX_ALONE |= {f"docs/{folder}index.md": {"toctree"} for folder in ("", "background/")}
PARSER = MarkdownIt("gfm-like", {"linkify": False}).use(anchors_plugin, max_level=6)


@functools.cache
def parse_text(text):
    """Return the tokens of a page, those within paragraphs and headings too."""
    return [part for token in PARSER.parse(text) for part in (token, *(token.children or ()))]


def parse(page):
    return parse_text(page.read_text("utf-8"))


def find_link_problem(target, page):
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    if re.match("https?:|mailto:", target):
        return None
    if not file.exists() or {"_generated", "_build"} & set(file.parts):
        return "no such file"
    ids = {token.attrs.get("id") for token in parse(file)} if anchor else {anchor}
    return None if anchor in ids or file.suffix != ".md" else "no such heading"


def find_problems(page):
    none = Token("", "", 0)
    tokens = [none, *parse(page), none]
    shown = SPHINX_ALONE.get(page.relative_to(ROOT).as_posix(), set())
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        match token.type, after.type:
            case ("link_open", "link_close"):
                yield f"no words: {token.attrs['href']}"
            case ("text", "code_inline") if re.search(r"{[a-z][\w:.-]*}$", token.content):
                yield f"a role: {token.content}"
            case ("strong_open", _) if re.search(r"\d$", before.content):
                yield f"a power that is bold: {before.content}"
            case ("fence", _) if set(re.findall(r"^{(.*)}", token.info)) - shown:
                yield f"only Sphinx shows {token.info}"
        target = token.attrs.get("href", token.attrs.get("src"))
        if target is not None and (problem := find_link_problem(str(target), page)):
            yield f"{problem}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_links_lead_somewhere_and_nothing_shows_as_something_else(page):
    assert list(find_problems(page)) == []


def test_wrong_links_and_roles_are_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page, right = tmp_path / "page.md", "# Twice\n\n# Twice `x`\n\n[a](#twice-x) `[](y.md)` {x} `y`"
    page.write_text(right)
    assert list(find_problems(page)) == []
    wrong = "[](page.md) [a](no.md) ![b](#no) {class}`x` 2**3 and 2**4\n\n```{note}\n```\n"
    page.write_text(wrong)
    starts = [problem.partition(":")[0] for problem in find_problems(page)]
    expected = ["no words", "no such file", "no such heading", "a role", "a power that is bold"]
    assert starts == [*expected, "only Sphinx shows {note}"]


def test_pictures_are_shown_small_and_without_background():
    shown = {str(token.attrs.get("src")) for page in PAGES for token in parse(page)}
    for picture in (ROOT / "docs" / "drawn").iterdir():
        assert f"drawn/{picture.name}" in {re.sub(r"^(docs|\.\.)/", "", src) for src in shown}
        assert picture.suffix == ".svg"
        text = picture.read_text("utf-8")
        assert len(text) < 150_000, picture
        assert "#ffffff" not in text, picture
        assert "<image" not in text, picture
