"""docs/remake.py fills what stands between marks, and tells when a file is not as it makes it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")


@pytest.fixture
def remake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    return importlib.import_module("remake")


def test_a_part_of_an_example(remake) -> None:
    what = 'examples/tiny_model.py, from "def logits" to "def norm"'
    page = f"before\n<!-- made: {what} -->\nold\n<!-- end -->\nafter\n"
    new = remake.with_made(page)
    assert "old" not in new
    assert new.startswith(f"before\n<!-- made: {what} -->\n\n```python\ndef logits(")
    assert new.endswith("\n```\n\n<!-- end -->\nafter\n")
    assert new.count("def norm") == 1  # in the mark
    assert remake.with_made(new) == new


@pytest.mark.parametrize("name", ["libraries", "history", "train_tiny"])
def test_a_table(name: str, remake) -> None:
    lines = remake.made(name).splitlines()
    assert lines[0].startswith("| ")
    assert lines[1].replace(" ", "").startswith("|---|")


def test_what_is_unknown_is_an_error(remake) -> None:
    with pytest.raises(KeyError, match="no such table"):
        remake.made("no such table")
    with pytest.raises(ValueError, match="substring not found"):
        remake.made('examples/tiny_model.py, from "def nothing" to "def norm"')


def test_check_writes_nothing(remake, monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(remake, "HERE", tmp_path / "docs")
    monkeypatch.setattr(remake, "DRAWN", tmp_path / "docs" / "drawn")
    wanted = {remake.DRAWN / "x.svg": b"new"}
    monkeypatch.setattr(remake, "files", lambda: wanted)
    assert remake.main(check=True) == 1
    assert not remake.DRAWN.exists()
    assert remake.main(check=False) == 0
    assert remake.main(check=True) == 0
    (remake.DRAWN / "old.svg").write_bytes(b"")
    capsys.readouterr()
    assert remake.main(check=True) == 1
    assert capsys.readouterr().out == "docs/drawn/old.svg\n"
    assert remake.main(check=False) == 0
    assert [path.name for path in remake.DRAWN.iterdir()] == ["x.svg"]
