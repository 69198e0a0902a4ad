"""Each entry of docs/background/bugs.md names a public thread, and tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "background" / "bugs.md").read_text("utf-8")
ENTRIES = {
    block.partition("**")[2].partition("**")[0]: block
    for block in re.split(r"\n\n+", PAGE)
    if block.startswith("**")
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
THREAD = re.compile(
    r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)\)"
)


@pytest.mark.parametrize("title", ENTRIES)
def test_entry_of_the_bugs_page_names_tests_and_links_threads(title):
    named, threads = TEST.findall(ENTRIES[title]), THREAD.findall(ENTRIES[title])
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert threads
    assert ENTRIES[title].count("https://") == len(threads)
    for name, number, linked, number_linked in threads:
        assert (name, number) == (linked, number_linked)
