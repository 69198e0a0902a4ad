"""What fields of a RoPE and what rules are refused, and in which words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import (
    NTK,
    Axial,
    DynamicNTK,
    Linear,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
    inverse_frequencies,
)

Q = np.ones((2, 9, 4, 8), np.float32)
K = np.ones((2, 9, 2, 8), np.float32)
NAN = float("nan")

# (arguments of RoPE, error, message)
ROPES = [
    ({"base": 0}, RopeError, "base must be positive and finite; got 0"),
    ({"base": -1.0}, RopeError, "base must be positive"),
    ({"base": NAN}, RopeError, "base must be positive and finite; got nan"),
    ({"base": math.inf}, RopeError, "base must be positive and finite; got inf"),
    ({"base": "1e4"}, TypeError, "base must be a number; got '1e4' .str."),
    ({"base": True}, TypeError, "base must be a number"),
    ({"base": None}, TypeError, "base must be a number"),
    ({"layout": "neox"}, RopeError, "layout must be one of .*got 'neox'"),
    ({"layout": None}, RopeError, "layout must be one of"),
    ({"layout": ["half"]}, RopeError, "layout must be one of"),
    ({"rotary_dim": 7}, RopeError, "rotary_dim must be even and positive"),
    ({"rotary_dim": 0}, RopeError, "rotary_dim must be even and positive"),
    ({"rotary_dim": -4}, RopeError, "rotary_dim must be even and positive"),
    ({"rotary_dim": 4.0}, TypeError, "rotary_dim must be an integer; got 4.0 .float."),
    ({"rotary_dim": True}, TypeError, "rotary_dim must be an integer; got True"),
    ({"rotary_offset": 0.5}, TypeError, "rotary_offset must be an integer"),
    ({"rotary_offset": None}, TypeError, "rotary_offset must be an integer"),
    ({"scaling": "yarn"}, TypeError, "scaling must be an instance such as"),
    ({"scaling": Linear}, TypeError, "scaling must be an instance such as"),
    ({"scaling": {"factor": 2.0}}, TypeError, "scaling must be an instance"),
    ({"position_axes": [0, 1]}, TypeError, "position_axes must be a tuple"),
    ({"position_axes": ()}, RopeError, "position_axes must hold integers >= 0"),
    ({"position_axes": (0, -1)}, RopeError, "position_axes must hold integers >= 0"),
    ({"position_axes": (0, 1.0)}, RopeError, "position_axes must hold integers >= 0"),
    (
        {"position_axes": (0, 1), "rotary_dim": 8},
        RopeError,
        "2 entries; 8 rotated components have 4 pairs",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), ROPES, ids=lambda a: str(a)[:40])
def test_rope(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        RoPE(**arguments)
    if "base" in arguments:
        with pytest.raises(error, match=message):
            rope_xp.apply(Q, K, **arguments)


@pytest.mark.parametrize("factor", [0, -1.0, NAN, math.inf])
def test_linear_factor(factor: float) -> None:
    with pytest.raises(RopeError, match=r"Linear.factor must be positive and finite"):
        Linear(factor)


SHORT = LongRoPE([1e-320] * 4, [1.0] * 4, 512, factor=2.0)
EXTREME = [
    (RoPE(scaling=NTK(1e-320)), "base that NTK makes of base = 10000.0 .*; got 0.0"),
    (RoPE(scaling=NTK(1e300)), "base that NTK makes of base = 10000.0 .*; got inf"),
    (RoPE(scaling=DynamicNTK(1e300, 1, length=10**300)), "base that DynamicNTK makes .* got inf"),
    (RoPE(scaling=DynamicNTK(10**300, 1, length=10**300)), "base that DynamicNTK makes"),
    (RoPE(base=1e-300, scaling=Linear(1e-320)), "must return 4 finite frequencies"),
    (RoPE(base=1e-300, scaling=SHORT.for_length(1)), "must return 4 finite frequencies"),
    (RoPE(scaling=Linear(1e-300)), "no tables: its fastest frequency is 1e\\+300, beyond float32"),
    (RoPE(base=1e-300), "no tables: its fastest frequency is 1e\\+225"),
    (
        RoPE(scaling=YaRN(2.0, 1, beta_slow=1e-320)),
        "wavelength of pairs that turn 1e-320 times",
    ),
    (RoPE(scaling=YaRN(2.0, 512, attention_factor=1e300)), "its attention_factor is 1e\\+300"),
    (RoPE(scaling=YaRN(2.0, 512, attention_factor=1e-300)), "1 / attention_factor is 1e\\+300"),
]


@pytest.mark.parametrize(("rope", "message"), EXTREME, ids=lambda a: str(a)[:60])
def test_rules_beyond_all_measure(rope: RoPE, message: str) -> None:
    for x in (Q, Q.astype(float)):
        with pytest.raises(RopeError, match=message):
            rope.rotate(x)


def test_lengths_beyond_all_measure() -> None:
    for attempt in (
        lambda: DynamicNTK(2.0, 1, length=10**400),
        lambda: RoPE(scaling=DynamicNTK(2.0, 1)).for_length(10**400),
        lambda: RoPE().for_length(10**400),
    ):
        with pytest.raises(RopeError, match="(n|DynamicNTK.length) must be positive and finite"):
            attempt()
    with pytest.raises(RopeError, match="softmax_scale must be positive and finite"):
        YaRN(1e17, 512, mscale=1.0, mscale_all_dim=1e300)


@pytest.mark.parametrize("rule", [NTK(2.0), YaRN(2.0, 512), Linear(2.0), Axial(), Proportional()])
@pytest.mark.parametrize("base", [0, -1.0, NAN, math.inf, 10**400])
def test_rules_asked_for_an_impossible_base(rule: Scaling, base: float) -> None:
    for attempt in (lambda: rule.frequencies(base, 8), lambda: inverse_frequencies(base, 8)):
        with pytest.raises(RopeError, match="base.* must be positive and finite"):
            attempt()


@pytest.mark.parametrize("rotary_dim", [0, -2, 3])
def test_frequencies_of_an_impossible_slice(rotary_dim: int) -> None:
    with pytest.raises(RopeError, match=f"rotary_dim must be .*; got {rotary_dim}"):
        inverse_frequencies(1e4, rotary_dim)


class Rule(Scaling):
    """A scaling rule that answers what it is told to."""

    def __init__(self, frequencies: object, factor: float = 1.0) -> None:
        self.answer, self.attention_factor = frequencies, factor

    def frequencies(self, base: float, rotary_dim: int) -> object:
        return self.answer


@pytest.mark.parametrize("answer", [[1.0, 0.1], [1.0] * 8, 1.0, [1.0, 0.1, NAN, 0.0], [[1.0] * 4]])
def test_rules_that_answer_nonsense(answer: object) -> None:
    rope = RoPE(scaling=Rule(answer))
    for attempt in (lambda: rope.rotate(Q), lambda: rope.frequencies(8)):
        with pytest.raises(RopeError, match="must return 4 finite frequencies, one a pair"):
            attempt()


@pytest.mark.parametrize("factor", [0.0, -1.0, NAN, math.inf])
def test_attention_factors_that_cannot_be_undone(factor: float) -> None:
    rule = Rule([1.0, 0.1, 0.01, 0.0], factor)
    with pytest.raises(RopeError, match=r"Rule.effective_attention_factor is .*a positive finite"):
        RoPE(scaling=rule)


def test_rules_that_cannot_be_a_key() -> None:
    rule = Rule([1.0])
    Rule.__hash__, before = None, Rule.__hash__
    try:
        with pytest.raises(TypeError, match="scaling must be hashable"):
            RoPE(scaling=rule)
    finally:
        Rule.__hash__ = before


@dataclass(frozen=True)
class Noted(Rule):
    """A rule with a note, which may or may not be a part of its hash."""

    attention_factor = 1.0
    note: object = None
    aside: object = field(default=None, compare=False)


@pytest.mark.parametrize("note", [[1.0], np.ones(2), (1, (2, {})), Noted(note=[1.0])])
def test_rules_with_a_field_that_cannot_be_a_key(note: object) -> None:
    with pytest.raises(TypeError, match="scaling must be hashable.*: unhashable type: '"):
        RoPE(scaling=Noted(note=note))


@pytest.mark.parametrize("note", [Rule, Linear, math.inf, len, frozenset((1, 2))])
def test_rules_that_can_be_a_key(note: object) -> None:
    rule = Noted(note=note, aside=[1.0])
    assert RoPE(scaling=rule).scaling is rule
