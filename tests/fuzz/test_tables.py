"""Frequencies, tables and weights, at random, against the formulas in long double."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import bounds, cases, oracle
from support.fuzz.libraries import fuzzed

from rope_xp import RoPE
from rope_xp.papers import encodings

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]


@st.composite
def ropes(draw):
    head_dim = draw(st.integers(2, 130))
    return draw(cases.ropes(head_dim)), head_dim


@given(case=ropes())
def test_frequencies(case):
    rope, head_dim = case
    r = rope.rotary_dim or head_dim
    right = oracle.frequencies(rope.base, r, rope.scaling)
    got = rope.frequencies(head_dim)
    assert got.shape == (r // 2,)
    # Without a rule it is the float64 nearest to the formula. A rule's ramp is a difference of
    # logarithms up to 25, of which the least that is divided by is 0.001.
    ramp = type(rope.scaling).__name__ in ("YaRN", "Llama3")
    off = {True: 2.0**-53, False: 1e-9 if ramp else 1e-13}[rope.scaling is None]
    np.testing.assert_array_less(np.abs(got - right), off * 1.001 * right + 1e-300)


@st.composite
def angles(draw):
    rope, head_dim = draw(ropes())
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    at = draw(cases.positions(lead, draw(st.integers(0, 5)), cases.components(rope), none=False))
    options = {"xp": draw(st.booleans()), "double": draw(st.sampled_from([None, True, False]))}
    return SimpleNamespace(rope=rope, head_dim=head_dim, positions=at, **options)


@fuzzed()
@given(case=angles())
def test_cos_sin(library, case):
    if library.skips(case.positions.view.seed):
        return
    given_at, at = case.positions.given(library)
    xp = importlib.import_module(library.module)
    own = case.positions.kind == "library"
    space = xp if own or case.xp else np
    double = case.double and "float64" in library.floats
    more = {} if case.double is None else {"dtype": space.float64 if double else space.float32}
    if case.xp and not own:
        more["xp"] = xp
    with library.chosen():
        tables = case.rope.cos_sin(given_at, case.head_dim, **more)
        if case.rope.scaling is None and case.rope.position_axes is None and case.head_dim % 2 == 0:
            waves = encodings.sinusoidal(given_at, case.head_dim, base=case.rope.base, **more)
            whole = RoPE(base=case.rope.base).cos_sin(given_at, case.head_dim, **more)
            for n, table in ((1, whole[0]), (0, whole[1])):
                np.testing.assert_array_equal(np.asarray(waves)[..., n::2], np.asarray(table))
    cos, sin, error = bounds.looked_up(case.rope, case.head_dim, at, bool(double))
    factor = case.rope.attention_factor
    least = 2.0**-53 if double else 2.0**-24  # of the factor
    for got, right in zip(tables, (cos, sin), strict=True):
        found = np.asarray(got)
        assert found.dtype == (np.float64 if double else np.float32)
        assert found.shape == right.shape
        assert (np.abs(found - right * factor) <= (error + least * (factor != 1)) * factor).all()
