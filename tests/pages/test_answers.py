"""The tables of docs/port.md: what code of other libraries does, and what to write here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support.answers import LIBRARIES, names

PAGE = Path(__file__).parents[2] / "docs" / "port.md"
ROW = re.compile(r"^\| `([^|`]+)` \| `([^|`]+)` \|$", re.MULTILINE)
SECTIONS = PAGE.read_text("utf-8").split("\n## ")[1:]
ROWS = [(part.partition("\n")[0], *row) for part in SECTIONS for row in ROW.findall(part)]

# Theirs multiply in float32: at positions up to 12 an angle is off by 12 * 2**-23, and a component
# of less than 5 by five times that.
CLOSE = 1e-5


def arrays(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part) for part in parts]


def test_each_library_is_answered() -> None:
    assert {library for library, _, _ in ROWS} == LIBRARIES.keys()


@pytest.mark.parametrize(("library", "theirs", "ours"), ROWS)
def test_answers(library: str, theirs: str, ours: str) -> None:
    given = names(library)
    expected, got = arrays(eval(theirs, given)), arrays(eval(ours, given))
    assert [y.shape for y in got] == [y.shape for y in expected]
    for y, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=CLOSE)
