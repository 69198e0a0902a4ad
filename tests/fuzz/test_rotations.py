"""Rotations and tables, at random, against the formulas in long double."""

import importlib
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import bounds, cases
from support.fuzz.libraries import fuzzed
from support.fuzz.memory import lay

import rope_xp
from rope_xp import RoPE

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]
METHODS = ("apply", "apply of fields", "rotate", "unrotate", "rerotate")


@fuzzed
@given(data=st.data())
def test_rotations_by_every_method_are_within_the_bounds(library, data):
    draw = data.draw
    if draw(st.integers(0, library.share - 1)):
        return
    method, shape = draw(st.sampled_from(METHODS)), draw(cases.shapes())
    tokens, d = shape.sizes["s"], shape.sizes["d"]
    rope = draw(cases.ropes(d))
    kinds = ("list", "numpy", "library", "none")
    given_at, at = draw(cases.positions(library, rope, shape.batch, tokens, kinds))
    view = cases.views(len(shape.axes), library.floats, library.any_memory)
    laid, options = [lay(shape.of(), draw(view))], {"axes": shape.given}
    ((_, x),) = laid
    if method.startswith("apply"):
        k_at = at
        if draw(st.booleans()):
            tokens = draw(st.integers(0, 5))
            own = draw(cases.positions(library, rope, shape.batch, tokens))
            options["k_positions"], k_at = own
        laid.append(lay(shape.of(h=draw(st.integers(0, 3)), s=tokens), draw(view)))
        pairs = ((x, at), (laid[1][1], k_at))
        expected = [bounds.turned(x, shape, rope, where, False) for x, where in pairs]
        if method != "apply":
            options |= {field.name: getattr(rope, field.name) for field in fields(RoPE)}
        else:
            options["rope"] = rope
    elif method == "rerotate":
        to = draw(cases.turned_anew(rope, d))
        given_new, new = draw(cases.positions(library, to, shape.batch, tokens, kinds))
        expected = [bounds.rerotated(x, shape, rope, to, at, new)]
    else:
        expected = [bounds.turned(x, shape, rope, at, method == "unrotate")]

    def call(arrays, **out):
        if len(arrays) == 2:
            return rope_xp.apply(*arrays, given_at, **options, **out)
        if method == "rerotate":
            return (rope.rerotate(*arrays, given_at, given_new, to=to, **options, **out),)
        return (getattr(rope, method)(*arrays, given_at, **options, **out),)

    bounds.check(library, draw, call, laid, expected)


@fuzzed
@given(data=st.data())
def test_rotations_by_given_tables_are_within_the_bounds(library, data):
    draw = data.draw
    if draw(st.integers(0, library.share - 1)):
        return
    shape = draw(cases.shapes())
    view = cases.views(len(shape.axes), library.floats, library.any_memory)
    memory, x = lay(shape.of(), draw(view))
    pairs = draw(st.integers(1, x.shape[-1] // 2))
    offset = draw(st.integers(0, x.shape[-1] - 2 * pairs))
    options = {"layout": draw(st.sampled_from(cases.LAYOUTS)), "inverse": draw(st.booleans())}
    options["rotary_offset"] = offset - x.shape[-1] if offset and draw(st.booleans()) else offset
    lead = (*shape.batch[draw(st.integers(0, len(shape.batch))) :], shape.sizes["s"])
    table_shape = (*(draw(st.sampled_from([n, 1])) for n in lead), pairs)
    own = draw(st.booleans())
    floats = library.floats if own else cases.ALL_FLOATS
    table_views = cases.views(len(table_shape), floats, library.any_memory or not own)
    tables = [lay(table_shape, draw(table_views))[1] for _ in "cs"]
    # As they are used: in float32, in float64 where x is.
    used = [
        t.astype(np.float64 if x.itemsize == 8 else np.float32).astype(bounds.WIDE) for t in tables
    ]
    expected = bounds.rotate(x, shape, *used, 0, options["layout"], offset, options["inverse"])
    given_tables = [library.make(t) if own else t for t in tables]

    def call(arrays, **out):
        return (rope_xp.apply_tables(*arrays, *given_tables, axes=shape.given, **options, **out),)

    bounds.check(library, draw, call, [(memory, x)], [expected])


@fuzzed
@given(data=st.data())
def test_cos_sin_is_within_the_bounds(library, data):
    draw = data.draw
    if draw(st.integers(0, library.share - 1)):
        return
    head_dim = draw(cases.HEAD_DIMS | st.integers(2, 130))
    rope, lead = draw(cases.ropes(head_dim)), tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    given_at, at = draw(cases.positions(library, rope, lead, draw(st.integers(0, 5))))
    xp, more = importlib.import_module(library.module), {}
    own = not isinstance(given_at, (list, np.ndarray)) or xp is np
    if not own and draw(st.booleans()):
        own, more = True, {"xp": xp}
    dtype = draw(st.sampled_from([None, "float32", "float64"]))
    dtype = dtype if dtype is None or dtype in library.floats else "float32"
    if dtype:
        more["dtype"] = getattr(xp if own else np, dtype)
    with library.chosen():
        tables = rope.cos_sin(given_at, head_dim, **more)
    cos, sin, error = bounds.looked_up(rope, head_dim, at, dtype == "float64")
    factor = rope.attention_factor
    least = 2.0**-53 if dtype == "float64" else 2.0**-24  # of the factor
    for got, right in zip(map(np.asarray, tables), (cos, sin), strict=True):
        assert (got.dtype, got.shape) == (dtype or "float32", right.shape)
        assert (np.abs(got - right * factor) <= (error + least * (factor != 1)) * factor).all()
