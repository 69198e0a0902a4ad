"""A check that is muted says why, in words after the mute."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("rope_xp", "backends", "tests", "asv_benchmarks", "docs")
# fmt: skip is none of them: it keeps a table a table, as anyone sees.
MUTE = re.compile(r"# *(?:type: *ignore(?:\[[\w, -]*\])?|noqa(?:: *[A-Z]+\d+(?:, *[A-Z]+\d+)*)?)")
REASON = re.compile(r"\s+# *\w.*")


def find_unexplained(file: Path) -> list[str]:
    with tokenize.open(file) as source:
        tokens = list(tokenize.generate_tokens(source.readline))
    return [
        f"{file}:{token.start[0]}"
        for token in tokens
        if token.type == tokenize.COMMENT
        and (mute := MUTE.match(token.string))
        and not REASON.fullmatch(token.string[mute.end() :])
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_mute_says_why(folder):
    files = [f for f in (ROOT / folder).rglob("*.py") if "_build" not in f.parts]
    muted = [f for f in files if MUTE.search(f.read_text("utf-8"))]  # tokens take their time
    assert muted
    assert [line for file in muted for line in find_unexplained(file)] == []
