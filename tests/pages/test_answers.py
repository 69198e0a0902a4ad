"""The tables of docs/start.md: what code of other libraries does, and what to write here."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from support.answers import LIBRARIES, OURS

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
ROW = re.compile(r"^\| `([^|`]+)` \| `([^|`]+)` \|$", re.MULTILINE)
SECTIONS = PAGE.read_text("utf-8").split("\n### ")[1:]
ROWS = [(part.partition("\n")[0], *row) for part in SECTIONS for row in ROW.findall(part)]

# Theirs multiply in float32: at positions up to 12 an angle is off by 12 * 2**-23, and a component
# of less than 5 by five times that.
CLOSE = 1e-5


def list_arrays(result):
    return [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]


def test_port_page_answers_each_library():
    assert {library for library, _, _ in ROWS} == LIBRARIES.keys()


@pytest.mark.parametrize(("library", "theirs", "ours"), ROWS)
def test_row_of_the_port_page_gives_the_numbers_of_the_library(library, theirs, ours):
    names = OURS | LIBRARIES[library]()
    expected, actual = list_arrays(eval(theirs, names)), list_arrays(eval(ours, names))
    assert [y.shape for y in actual] == [y.shape for y in expected]
    for y, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(y, other, rtol=0, atol=CLOSE)
