"""The names of a RoPE's fields: what is answered to others, and what follows from what is given."""

import copy
import inspect
import pickle
from dataclasses import replace

import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import LongRoPE, YaRN


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
        ("rope_theta", "rope_theta is base"),
        ("dim", "dim is rotary_dim"),
        ("head_dim", "head_dim is rotary_dim, if only a part of a head is rotated"),
        ("interleaved", "interleaved is layout='interleaved', or layout='half'"),
    ],
)
def test_wrong_names_are_answered_with_the_right_one(name: str, answer: str) -> None:
    for make in (RoPE, lambda **fields: rope_xp.apply(None, None, **fields)):
        with pytest.raises(TypeError, match=f"unknown option {name}; a RoPE has base, ") as caught:
            make(**{name: 1})
        assert str(caught.value).endswith(answer) or answer in str(caught.value)
    with pytest.raises(TypeError, match="unknown option x, y; a RoPE has .*position_axes$"):
        RoPE(x=1, y=2, base=3)  # type: ignore[call-arg]  # likewise


def test_yarn_that_is_replaced_follows_its_factor() -> None:
    rule = YaRN(4.0, 4096)
    assert replace(rule, factor=8.0) == YaRN(8.0, 4096)
    assert replace(rule, factor=8.0).attention_factor != rule.attention_factor
    assert replace(rule, mscale=1.0, mscale_all_dim=0.5) == YaRN(
        4.0, 4096, mscale=1.0, mscale_all_dim=0.5
    )
    again = replace(replace(rule, factor=8.0), factor=4.0)
    assert again == rule


def test_longrope_that_is_replaced_follows_its_factor() -> None:
    rule = LongRoPE([1.0], [2.0], 4096, factor=4.0)
    assert replace(rule, factor=32.0) == LongRoPE([1.0], [2.0], 4096, factor=32.0)
    fixed = rule.for_length(8192)
    assert replace(fixed, factor=32.0).attention_factor > fixed.attention_factor
    assert fixed.attention_factor == rule.attention_factor


@pytest.mark.parametrize(
    "rule",
    [YaRN(4.0, 4096, attention_factor=1.5), LongRoPE([1.0], [2.0], 4096, attention_factor=1.5)],
)
def test_a_factor_that_was_given_stays(rule: YaRN | LongRoPE) -> None:
    assert replace(rule, factor=8.0).attention_factor == 1.5
    computed = replace(rule, factor=8.0, attention_factor=None)  # type: ignore[arg-type]  # to compute it
    assert computed.attention_factor != 1.5
    assert replace(computed, factor=9.0).attention_factor != computed.attention_factor


@pytest.mark.parametrize("rule", [YaRN(4.0, 4096), YaRN(4.0, 4096, attention_factor=1.5)])
def test_copies_know_what_was_given(rule: YaRN) -> None:
    for made in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), copy.copy(rule)):
        assert made == rule
        assert replace(made, factor=8.0) == replace(rule, factor=8.0)
