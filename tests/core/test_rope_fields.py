"""The names of a RoPE's fields: what is answered to others, and what follows from what is given."""

import dataclasses
import functools
import inspect
import operator
import re

import numpy as np
import pytest

import rope_xp
import rope_xp.positions  # which answers name, and which only those who want it import
from rope_xp import RoPE
from rope_xp._arguments import fields


def test_fields_have_names() -> None:
    """RoPE(64) would be a base of 64."""
    with pytest.raises(
        TypeError, match=r"got 64. Write RoPE\(rotary_dim=64\) .* or RoPE\(base=64\)"
    ):
        RoPE(64)  # type: ignore[misc]  # as is to be answered
    kinds = {p.kind for p in inspect.signature(RoPE).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("theta", "theta is base"),
        ("head_dim", "head_dim is rotary_dim, if only a part of a head is rotated"),
        ("partial_rotary_factor", "partial_rotary_factor is rotary_dim, a number of components"),
        ("is_neox_style", "is_neox_style is layout='half' if true, else layout='interleaved'"),
        ("seqlen_offset", "seqlen_offset is part of positions: apply(q, k, offset + arange("),
        ("max_position_embeddings", "max_position_embeddings is not needed: no table is made"),
        ("inv_freq", "inv_freq is made of base and scaling; rope_xp.apply_frequencies"),
        ("rope_scaling", "rope_scaling is scaling, a class of rope_xp.scaling"),
        ("cu_seqlens", "cu_seqlens is positions=rope_xp.positions.packed(cu_seqlens)"),
    ],
)
def test_wrong_names_are_answered_with_the_right_one(name: str, answer: str) -> None:
    for make in (
        RoPE,
        functools.partial(RoPE.axial, (4, 4)),
        functools.partial(rope_xp.apply, None, None),
    ):
        with pytest.raises(TypeError, match=f"unknown option {name}; a RoPE has base, ") as caught:
            make(**{name: 1})
        assert f"position_axes; {answer}" in str(caught.value)


def test_wrong_names_of_one_meaning_are_answered_at_once() -> None:
    with pytest.raises(TypeError, match="unknown option x, y; a RoPE has .*position_axes$"):
        RoPE(x=1, y=2, base=3)  # type: ignore[call-arg]  # as is to be answered
    with pytest.raises(TypeError, match="option cos, sin; .*; cos is a table: .*; sin is a"):
        RoPE(cos=1, sin=2)  # type: ignore[call-arg]  # likewise


def test_what_is_answered_exists() -> None:
    """Each name that an answer sends to, and no answer to a name that is right."""
    assert not {field.name for field in dataclasses.fields(RoPE)} & fields.FOREIGN.keys()
    named = set(re.findall(r"rope_xp((?:\.\w+)+)", " ".join(fields.FOREIGN.values())))
    assert {".apply_tables", ".apply_frequencies", ".scaling.Linear"} < named
    for path in named:
        operator.attrgetter(path[1:])(rope_xp)


def test_tables_in_the_place_of_positions() -> None:
    """As functions of Hugging Face are called, with q, k, cos and sin."""
    q = np.ones((1, 4, 2, 8), np.float32)
    with pytest.raises(TypeError, match=r"got an array, ndarray of shape \(4, 8\).*apply_tables"):
        rope_xp.apply(q, q, np.ones((4, 8)), np.ones((4, 8)))


def test_help_is_whole() -> None:
    """Each public method says what each of its arguments is, in its own words."""
    for name in ("apply", "rotate", "unrotate", "rerotate", "at", "cos_sin", "table"):
        method = getattr(RoPE, name)
        kinds = {p.kind for p in inspect.signature(method).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        for section in ("Parameters", "Returns", "Examples"):
            assert f"\n{section}\n---" in inspect.getdoc(method)
        described = re.findall(r"^([\w, ]+?)(?: :.*)?$", inspect.getdoc(method), re.MULTILINE)
        described = {word for line in described for word in line.split(", ")}
        assert set(inspect.signature(method).parameters) - {"self"} <= described
