"""Fields of a RoPE: their names, numbers of numpy among them, and as arguments of apply."""

import dataclasses
import functools
import inspect
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.rules import Only, Twice

import rope_xp
import rope_xp.positions  # which answers name, and which only those who want it import
from rope_xp import RoPE, RopeError, _functions
from rope_xp._arguments import fields
from rope_xp.scaling import (
    NTK,
    Axial,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    RIFLEx,
    YaRN,
    inverse_frequencies,
)


def test_fields_are_taken_by_keyword_alone():
    """RoPE(64) would be a base of 64."""
    with pytest.raises(
        TypeError, match=r"got 64. Write RoPE\(rotary_dim=64\) .* or RoPE\(base=64\)"
    ):
        RoPE(64)
    kinds = {p.kind for p in inspect.signature(RoPE).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("theta", "theta is base"),
        ("head_dim", "head_dim is rotary_dim, if only part of a head is rotated"),
        ("partial_rotary_factor", "partial_rotary_factor is rotary_dim, the number of components"),
        ("is_neox_style", "is_neox_style is layout='half' if true, else layout='interleaved'"),
        ("seqlen_offset", "seqlen_offset is part of positions: apply(q, k, offset + arange("),
        ("max_position_embeddings", "max_position_embeddings is not needed: there is no table"),
        ("inv_freq", "inv_freq is computed from base and scaling; for your own use"),
        ("rope_scaling", "rope_scaling is scaling, a class of rope_xp.scaling"),
        ("cu_seqlens", "cu_seqlens is positions=rope_xp.positions.packed(cu_seqlens)"),
    ],
)
def test_wrong_names_are_answered_with_the_right_one(name, answer):
    axial, apply = (functools.partial(RoPE.axial, (4, 4)), functools.partial(rope_xp.apply, 0, 0))
    for make in (RoPE, axial, apply):
        with pytest.raises(TypeError, match=f"unknown option {name}; a RoPE has base, ") as caught:
            make(**{name: 1})
        assert f"position_axes; {answer}" in str(caught.value)


def test_several_wrong_names_are_answered_at_once():
    with pytest.raises(TypeError, match="unknown option x, y; a RoPE has .*position_axes$"):
        RoPE(x=1, y=2, base=3)
    with pytest.raises(TypeError, match="option cos, sin; .*; cos is a table: .*; sin is a"):
        RoPE(cos=1, sin=2)


def test_answers_to_wrong_names_name_what_exists():

    assert not {field.name for field in dataclasses.fields(RoPE)} & fields.FOREIGN.keys()
    named = set(re.findall(r"rope_xp((?:\.\w+)+)", " ".join(fields.FOREIGN.values())))
    assert {".apply_tables", ".apply_frequencies", ".scaling.Linear"} < named
    for path in named:
        operator.attrgetter(path[1:])(rope_xp)


# --- numbers of numpy are taken wherever Python's are, and held as Python's ----------------------

Make = Callable[[Callable[[int], Any], Callable[[float], Any]], Any]
"""From a way to write integers and one to write floats to what holds them."""

HOLDERS: dict[str, Make] = {
    "fields": lambda i, f: RoPE(
        base=f(1e4), rotary_dim=i(8), rotary_offset=i(-8), position_axes=(i(0), i(1)) * 2
    ),
    "base": lambda i, f: RoPE(base=i(10000)),
    "for_length": lambda i, f: RoPE(scaling=DynamicNTK(2.0, 64)).for_length(i(128)),
    "axial": lambda i, f: RoPE.axial((i(4), i(8)), bases=(f(100.0), f(1e4))),
    "Linear": lambda i, f: Linear(f(2.0)),
    "NTK": lambda i, f: NTK(f(2.0)),
    "DynamicNTK": lambda i, f: DynamicNTK(f(2.0), i(64), i(128)),
    "YaRN": lambda i, f: YaRN(f(4.0), i(4096), f(32.0), f(1.0), f(1.5), f(0.5), f(0.0)),
    "LongRoPE": lambda i, f: LongRoPE((f(1.0),), (f(2.0),), i(64), f(4.0), f(1.5), i(256), i(99)),
    "Llama3": lambda i, f: Llama3(f(8.0), f(1.0), f(4.0), i(8192)),
    "Proportional": lambda i, f: Proportional(f(0.5), f(2.0)),
    "Axial": lambda i, f: Axial(i(2), bases=(f(1e2), f(1e3))),
    "RIFLEx": lambda i, f: RIFLEx(i(2), i(42), Axial(i(2)), i(1), f(0.75)),
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
        *[lambda n: rope_xp.apply_tables(x, *tables, rotary_offset=n - 16)] * 3,  # slow, cached
    ):
        assert np.array_equal(call(np.int64(8)), call(8))


# --- fields of apply: made into a RoPE once, and never a wrong one -------------------------------

Q = np.random.default_rng(0).standard_normal((2, 5, 4, 8), np.float32)
LONG = LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 64, factor=4.0, length=100)
FIELDS: tuple[dict[str, Any], ...] = (
    {"layout": "half", "base": 5e5},
    {"scaling": LONG, "rotary_dim": 8},
    {"position_axes": (0, 1, 0, 1)},
)


@pytest.mark.parametrize("options", FIELDS, ids=",".join)
def test_fields_of_apply_rotate_as_a_rope_of_them(options):
    positions = np.outer([1, 7] if "position_axes" in options else 1, np.arange(5)).squeeze()
    for _ in range(3):
        rotated = rope_xp.apply(Q, Q, positions, **options)[0]
        np.testing.assert_array_equal(rotated, RoPE(**options).rotate(Q, positions))


def test_equal_fields_of_other_types_are_told_apart():
    def rotate(**options: Any) -> np.ndarray:
        return rope_xp.apply(Q, Q, None, **options)[0]

    quarter, half = (0.25,) * 4, (0.5,) * 4
    assert Only(quarter) == Twice(quarter)
    first, second = rotate(scaling=Only(quarter)), rotate(scaling=Twice(quarter))
    np.testing.assert_array_equal(second, RoPE(scaling=Only(half)).rotate(Q))
    assert np.abs(first - second).max() > 0.1
    rotate(rotary_dim=8, base=1, position_axes=(0, 1, 0, 1))
    for message, options in (
        ("rotary_dim must be an integer; got 8.0", {"rotary_dim": 8.0}),
        ("base must be a number; got True", {"base": True}),
        ("position_axes must be integers", {"position_axes": (0.0, 1.0, 0.0, 1.0)}),
        ("position_axes must be a tuple", {"position_axes": [0, 1, 0, 1]}),
        ("unknown option theta", {"theta": 1e4}),
    ):
        for _ in range(2):  # what was refused once is refused again
            with pytest.raises((TypeError, RopeError), match=message):
                rotate(**options)


def test_rules_at_reused_addresses_are_told_apart_and_bounded():

    for i in range(1, 500):
        rule = Linear(float(i))
        rope_xp.explain(Q, Q, scaling=rule)
        assert _functions._resolve_rope(None, {"scaling": rule}, Q).scaling is rule
        del rule
    assert len(_functions._ropes) <= 128
