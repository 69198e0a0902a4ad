"""Fields of a RoPE: their names, numbers of numpy among them, and as arguments of apply."""

import dataclasses
import operator
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.rules import Only, Twice

import rope_xp
import rope_xp.positions  # which answers name, and which only those who want it import
from rope_xp import RoPE
from rope_xp._arguments import fields
from rope_xp.scaling import (
    DynamicNTK,
    Linear,
    LongRoPE,
    inverse_frequencies,
)


def test_fields_are_taken_by_keyword_alone():
    """RoPE(64) would be a base of 64."""
    message = r"got 64. Write RoPE\(rotary_dim=64\) .* or RoPE\(base=64\)"
    with pytest.raises(TypeError, match=message):
        RoPE(64)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("theta", "theta is base"),
        ("is_neox_style", "is_neox_style is layout='half' if true, else layout='interleaved'"),
        ("cu_seqlens", "cu_seqlens is positions=rope_xp.positions.packed(cu_seqlens)"),
    ],
)
def test_wrong_names_are_answered_with_the_right_one(name, answer):
    message = re.escape(f"position_axes; {answer}")
    for make in (RoPE, partial(RoPE.axial, (4, 4)), partial(rope_xp.apply, 0, 0)):
        with pytest.raises(TypeError, match=f"unknown option {name}; a RoPE has base, .*{message}"):
            make(**{name: 1})


def test_several_wrong_names_are_answered_at_once():
    with pytest.raises(TypeError, match="option cos, sin; .*; cos is a table: .*; sin is a"):
        RoPE(cos=1, sin=2)


def test_answers_to_wrong_names_name_what_exists():
    assert not {field.name for field in dataclasses.fields(RoPE)} & fields.FOREIGN.keys()
    named = set(re.findall(r"rope_xp((?:\.\w+)+)", " ".join(fields.FOREIGN.values())))
    assert {".apply_tables", ".apply_frequencies", ".scaling.Linear"} < named
    for path in named:
        operator.attrgetter(path[1:])(rope_xp)


# What holds integers and floats, from a way to write each.
HOLDERS: dict[str, Callable[..., Any]] = {
    "fields": lambda i, f: RoPE(
        base=f(1e4), rotary_dim=i(8), rotary_offset=i(-8), position_axes=(i(0), i(1)) * 2
    ),
    "base": lambda i, f: RoPE(base=i(10000)),
    "for_length": lambda i, f: RoPE(scaling=DynamicNTK(2.0, 64)).for_length(i(128)),
    "axial": lambda i, f: RoPE.axial((i(4), i(8)), bases=(f(100.0), f(1e4))),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_numbers_of_numpy_are_held_as_those_of_python(name):
    expected = HOLDERS[name](int, float)
    for integer, real in ((np.int64, np.float32), (np.uint8, np.float64)):
        holder = HOLDERS[name](lambda n, t=integer: (t if 0 <= n < 256 else np.int32)(n), real)
        assert holder == expected
        for describe in (hash, repr, pickle.dumps):
            assert describe(holder) == describe(expected)


def test_numbers_of_numpy_are_taken_as_arguments():
    rope, x = RoPE(layout="half"), np.ones((3, 2, 16), np.float32)
    tables = rope.cos_sin([1, 2, 3], 8)
    for call in (
        *(rope.frequencies, rope.wavelengths, lambda n: rope.cos_sin([3], n)),
        lambda n: rope.table(n, n, form="vllm"),
        lambda n: inverse_frequencies(n, n),
        lambda n: rope_xp.permute_weights(np.arange(16), n, to="half"),
        lambda n: rope_xp.apply_tables(x, *tables, rotary_offset=n - 16),
    ):
        assert np.array_equal(call(np.int64(8)), call(8))


Q = np.random.default_rng(0).standard_normal((2, 5, 4, 8), np.float32)
LONG = LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 64, factor=4.0, length=100)
FIELDS = [{"layout": "half", "base": 5e5}, {"scaling": LONG, "rotary_dim": 8}]
FIELDS += [{"position_axes": (0, 0, 0, 0)}, {"scaling": Only((0.25,) * 4)}]


def test_apply_of_fields_rotates_as_a_rope_of_them():
    for options in 2 * [*FIELDS, {"scaling": Twice((0.25,) * 4)}]:
        rotated = rope_xp.apply(Q, Q, **options)[0]
        np.testing.assert_array_equal(rotated, RoPE(**options).rotate(Q))
    for i in range(300):  # rules at the addresses of others
        rotated = rope_xp.apply(Q, Q, scaling=Linear(1.0 + i))[0]
        np.testing.assert_array_equal(rotated, RoPE(scaling=Linear(1.0 + i)).rotate(Q))


@pytest.mark.parametrize(("field", "good", "bad"), [("rotary_dim", 8, 8.0), ("base", 1, True)])
def test_apply_refuses_fields_that_equal_good_ones_but_for_their_type(field, good, bad):
    rope_xp.apply(Q, Q, **{field: good})
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(TypeError, match=f"{field} must be"):
            rope_xp.apply(Q, Q, **{field: bad})
