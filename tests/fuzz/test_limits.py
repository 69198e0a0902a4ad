"""Positions beyond 2**31, at random: refused where they are read, NaN where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import bounds, cases
from support.fuzz.cases import LAYOUTS, LIMIT, Shape
from support.fuzz.libraries import LIBRARIES, Library, fuzzed

from rope_xp import RoPE, RopeError

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]

inside = st.sampled_from([*cases.EDGES, *(-n for n in cases.EDGES)]) | st.integers(
    1 - LIMIT, LIMIT - 1
)
integers = inside | st.sampled_from(
    [LIMIT, -LIMIT, LIMIT + 1, -LIMIT - 1, 1 << 40, -(1 << 63), (1 << 63) - 1]
)
floats = st.floats(-(2.0**20), 2.0**20, width=32) | st.sampled_from(
    [2.0**31, -(2.0**31), 1e30, -1e30, np.inf, -np.inf, np.nan]
)
lists = st.lists(integers, min_size=1, max_size=5) | st.lists(floats, min_size=1, max_size=5)


def fits(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.array([bool(abs(float(p)) < LIMIT) for p in numbers])


@fuzzed()
@given(numbers=lists, layout=st.sampled_from(LAYOUTS), double=st.booleans())
def test_positions_that_are_read(
    library: Library, numbers: list[float], layout: str, double: bool
) -> None:
    x = np.ones((len(numbers), 1, 4), library.float("float64" if double else "float32"))
    made, rope = library.make(x), RoPE(layout=layout)
    for given_at in (numbers, np.array(numbers)):
        with library.chosen():
            if fits(np.array(numbers)).all():
                right = bounds.turned(x, Shape("shd", False, {}), rope, np.array(numbers), False)
                bounds.close(library, library.back(rope.rotate(made, given_at)), x, *right)
                continue
            with pytest.raises(RopeError, match="modulus below"):
                rope.rotate(made, given_at)


@fuzzed(tuple(each for each in LIBRARIES if each.module not in ("numpy", "torch")))
@given(numbers=lists, layout=st.sampled_from(LAYOUTS))
def test_positions_that_are_not_read(library: Library, numbers: list[float], layout: str) -> None:
    held = np.array(numbers)
    held = held.astype(library.number(held.dtype.name)) if held.dtype.kind == "f" else held
    if held.dtype.name not in (*library.integers, *library.floats):
        return
    x, rope = np.ones((len(numbers), 1, 4), np.float32), RoPE(layout=layout)
    with library.chosen():
        got = library.back(rope.rotate(library.make(x), library.make(held)))
    known = fits(held)
    assert np.isnan(got[~known]).all()
    right = bounds.turned(x[known], Shape("shd", False, {}), rope, held[known], inverse=False)
    bounds.close(library, got[known], x[known], *right)
