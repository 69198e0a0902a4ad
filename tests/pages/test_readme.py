"""README.md: short, with its commands where the gate looks for them, and legible on a forge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {"README.md": README, "docs/start.md": (ROOT / "docs" / "start.md").read_text("utf-8")}
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def test_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("use", "pip install . && python -m rope_xp demo"),
        ("change", 'pip install -c constraints/test.txt -e ".[test]" && pytest'),
    ],
)
def test_commands_have_names(name: str, command: str) -> None:
    assert README.count(f"<!-- command: {name} -->\n```shell\n{command}\n```\n") == 1


def test_sends_to_the_start_first() -> None:
    local = [to for _, to in LINK.findall(README) if not to.startswith("http")]
    assert local[0] == "docs/start.md"


def test_says_what_a_layout_is_before_it_uses_one() -> None:
    told = README.index("Which two are a pair is the **layout**")
    assert told < README.index('`"interleaved"` is the default') < README.index("layout=")
    assert README.index("import torch\n") < README.index("import numpy")


@pytest.mark.parametrize("page", PAGES)
def test_links_have_a_text_and_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "code", PAGES[page], flags=re.DOTALL)
    assert "{" not in text  # a role of MyST
    for said, to in LINK.findall(text):
        assert said, to
        file, _, heading = to.partition("#")
        target = ROOT / page if not file else (ROOT / page).parent / file
        if file.startswith("http"):
            continue
        assert target.exists(), to
        if heading:
            assert heading in _anchors(target.read_text("utf-8")), to


def _anchors(text: str) -> set[str]:
    """Return what a forge, and MyST, call the headings of a page."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
