"""Rotations and tables, at random, against the formulas in long double."""

import importlib
from dataclasses import dataclass, fields
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import bounds, cases
from support.fuzz.cases import Out, Positions, Shape
from support.fuzz.libraries import fuzzed
from support.fuzz.memory import View, lay
from support.fuzz.oracle import WIDE

import rope_xp
from rope_xp import RoPE
from rope_xp.papers import encodings

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]


@dataclass(frozen=True)
class Case:
    method: str
    shape: Shape
    rope: RoPE
    positions: Positions
    view: View
    out: Out
    other: Positions | None = None  # of k, where they are its own, or the new ones of ``rerotate``
    to: RoPE | None = None
    k_shape: tuple[int, ...] = ()
    k_view: View | None = None
    k_out: Out | None = None


@st.composite
def calls(draw):
    method = draw(st.sampled_from(["apply", "apply", "rotate", "unrotate", "rerotate"]))
    shape = draw(cases.shapes())
    tokens, ndim = shape.sizes["s"], len(shape.axes)
    rope = draw(cases.ropes(shape.sizes["d"]))
    at = draw(cases.positions(shape.batch, tokens, cases.components(rope)))
    one = (method, shape, rope, at, draw(cases.views(ndim)), draw(cases.outs(ndim)))
    if method == "rerotate":
        to = draw(cases.ropes(shape.sizes["d"], like=rope))
        return Case(*one, draw(cases.positions(shape.batch, tokens, cases.components(to))), to)
    if method != "apply":
        return Case(*one)
    own, k_tokens = None, tokens
    if draw(st.booleans()):
        k_tokens = draw(st.integers(0, 5))
        own = draw(cases.positions(shape.batch, k_tokens, cases.components(rope), none=False))
    k_shape = shape.of(h=draw(st.integers(0, 3)), s=k_tokens)
    return Case(*one, own, None, k_shape, draw(cases.views(ndim)), draw(cases.outs(ndim)))


@fuzzed()
@given(case=calls())
def test_rotations_by_every_method_are_within_the_bounds(library, case):
    if library.skips(case.view.seed):
        return
    shape, pair = case.shape, case.method == "apply"
    given_at, at = case.positions.given(library)
    given_other, other = (None, at) if case.other is None else case.other.given(library)
    laid = [library.lay(shape.of(), case.view)]
    if pair:
        laid.append(library.lay(case.k_shape, case.k_view))
    arrays = [x for _, x in laid]
    expected = []
    for i, x in enumerate(arrays):
        if case.method == "rerotate":
            expected.append(bounds.rerotated(x, shape, case.rope, case.to, at, other))
        else:
            where = (at, other)[i]
            expected.append(bounds.turned(x, shape, case.rope, where, case.method == "unrotate"))

    def call(arrays, **more):
        more |= {"axes": shape.given}
        if pair:
            more["k_positions"] = given_other
            if case.view.seed % 2:
                return rope_xp.apply(*arrays, given_at, case.rope, **more)
            options = {field.name: getattr(case.rope, field.name) for field in fields(RoPE)}
            return rope_xp.apply(*arrays, given_at, **options, **more)
        if case.method == "rerotate":
            return (case.rope.rerotate(*arrays, given_at, given_other, to=case.to, **more),)
        return (getattr(case.rope, case.method)(*arrays, given_at, **more),)

    bounds.check(library, call, laid, [case.out, case.k_out][: len(arrays)], expected)


@st.composite
def tables(draw):
    shape = draw(cases.shapes())
    d, ndim = shape.sizes["d"], len(shape.axes)
    pairs = draw(st.integers(1, d // 2))
    offset = draw(st.integers(0, d - 2 * pairs))
    if offset and draw(st.booleans()):
        offset -= d
    lead = shape.batch[draw(st.integers(0, len(shape.batch))) :]
    table = (*(draw(st.sampled_from([n, 1])) for n in (*lead, shape.sizes["s"])), pairs)
    return SimpleNamespace(
        shape=shape, pairs=pairs, layout=draw(st.sampled_from(cases.LAYOUTS)),
        inverse=draw(st.booleans()), offset=offset, view=draw(cases.views(ndim)),
        table_shape=table, cos=draw(cases.views(len(table))), sin=draw(cases.views(len(table))),
        kind=draw(st.sampled_from(["numpy", "library"])), out=draw(cases.outs(ndim)),
    )  # fmt: skip


@fuzzed()
@given(case=tables())
def test_rotations_by_given_tables_are_within_the_bounds(library, case):
    if library.skips(case.view.seed):
        return
    shape = case.shape
    laid = [library.lay(shape.of(), case.view)]
    ((_, x),) = laid
    numbers, given_tables = [], []
    for view in (case.cos, case.sin):
        own = case.kind == "library"
        _, table = (library.lay if own else lay)(case.table_shape, view)
        # As they are used: in float32, in float64 where x is.
        numbers.append(table.astype(np.float64 if x.itemsize == 8 else np.float32).astype(WIDE))
        given_tables.append(library.make(table) if own else table)
    expected = [bounds.rotate(x, shape, *numbers, 0, case.layout, case.offset, case.inverse)]

    def call(arrays, **more):
        more |= {"layout": case.layout, "inverse": case.inverse, "rotary_offset": case.offset}
        return (rope_xp.apply_tables(*arrays, *given_tables, axes=shape.given, **more),)

    bounds.check(library, call, laid, [case.out], expected)


@st.composite
def angles(draw):
    head_dim = draw(cases.HEAD_DIMS | st.integers(2, 130))
    rope = draw(cases.ropes(head_dim))
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    at = draw(cases.positions(lead, draw(st.integers(0, 5)), cases.components(rope), none=False))
    options = {"xp": draw(st.booleans()), "double": draw(st.sampled_from([None, True, False]))}
    return SimpleNamespace(rope=rope, head_dim=head_dim, positions=at, **options)


@fuzzed()
@given(case=angles())
def test_cos_sin_is_within_the_bounds(library, case):
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
