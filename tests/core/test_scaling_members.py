"""What a scaling rule holds and has: fields as they were given, and members that are checked."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import LongRoPE, Scaling, YaRN, inverse_frequencies

Q = np.random.default_rng(0).standard_normal((1, 5, 2, 16)).astype(np.float32)


@dataclass(frozen=True)
class Warm(YaRN):
    """A rule of somebody's own, with a field more."""

    warmth: float = 1.0


RULES = {
    "yarn": YaRN(4.0, 4096),
    "subclass": Warm(4.0, 4096, warmth=2.0),
    "longrope": LongRoPE((1.0,), (2.0,), 4096, factor=4.0),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


# --- fields --------------------------------------------------------------------------------------


@every_rule
def test_what_was_given_stays_in_the_field(rule: Any) -> None:
    assert rule.attention_factor is None
    assert rule.effective_attention_factor > 1.0
    assert RoPE(scaling=rule).attention_factor == rule.effective_attention_factor
    given = replace(rule, attention_factor=1.5)
    assert given.attention_factor == given.effective_attention_factor == 1.5


@every_rule
def test_a_rule_that_is_replaced_follows_its_factor(rule: Any) -> None:
    names = {each.name: getattr(rule, each.name) for each in fields(rule)}
    longer = replace(rule, factor=8.0)
    assert longer == type(rule)(**{**names, "factor": 8.0})
    assert longer.effective_attention_factor > rule.effective_attention_factor
    assert replace(longer, factor=4.0) == rule
    given = replace(rule, attention_factor=1.5)
    assert replace(given, factor=8.0).effective_attention_factor == 1.5
    assert replace(given, attention_factor=None) == rule


@every_rule
def test_dataclasses_see_all_fields(rule: Any) -> None:
    named = list(inspect.signature(type(rule)).parameters)
    assert list(asdict(rule)) == named == [each.name for each in fields(rule)]
    assert "attention_factor" in named
    assert type(rule)(**asdict(rule)) == rule
    assert set(vars(rule)) == set(named)
    for made in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), copy.copy(rule)):
        assert made == rule
        assert replace(made, factor=8.0) == replace(rule, factor=8.0)


@every_rule
def test_pydantic_sees_all_fields(rule: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(type(rule))
    assert adapter.validate_json(adapter.dump_json(rule)) == rule


# --- within a compiled graph ---------------------------------------------------------------------


def test_rules_are_made_within_a_graph() -> None:
    torch = pytest.importorskip("torch")
    long = RoPE(scaling=LongRoPE((1.0,) * 8, (1.0, 2.0) * 4, 64, factor=4.0))

    def rotate(q: Any) -> Any:
        return (
            *rope_xp.apply(q, q, scaling=YaRN(4.0, 64)),
            *rope_xp.apply(q, q, scaling=YaRN(4.0, 64, attention_factor=1.5)),
            long.for_length(100).rotate(q),
            RoPE(scaling=LongRoPE((1.0,) * 8, (1.0, 2.0) * 4, 64, factor=4.0, length=9)).rotate(q),
            RoPE(scaling=Slower(3.0)).rotate(q),
        )

    q = torch.from_numpy(Q)
    torch._dynamo.reset()
    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(q), rotate(q), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


# --- members of rules of one's own ---------------------------------------------------------------


@dataclass(frozen=True)
class Slower(Scaling):
    """The least that a rule says."""

    factor: float

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return inverse_frequencies(base, rotary_dim) / self.factor


def test_the_base_class_has_defaults() -> None:
    rope = RoPE(scaling=Slower(4.0))
    assert (rope.attention_factor, rope.softmax_scale) == (1.0, 1.0)
    assert rope.for_length(100) is rope
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=rope_xp.scaling.Linear(4.0)).rotate(Q))


def test_a_rule_without_frequencies_cannot_be_made() -> None:
    class Nothing(Scaling):
        pass

    with pytest.raises(TypeError, match="abstract method '?frequencies"):
        Nothing()  # type: ignore[abstract]  # the mistake


def structural(**members: Any) -> Any:
    """Return a rule that is derived from nothing, with all members but those that are None."""
    usual = {
        "frequencies": Slower.frequencies,
        "for_length": lambda self, n: self,
        "effective_attention_factor": 1.0,
        "softmax_scale": 1.0,
        "factor": 2.0,
    }
    held = {**usual, **members}
    return type("Bare", (), {k: v for k, v in held.items() if v is not MISSING})()


MISSING = object()


def test_a_rule_of_no_base_class_will_do() -> None:
    rope = RoPE(scaling=structural())
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=Slower(2.0)).rotate(Q))


@pytest.mark.parametrize("name", ["for_length", "effective_attention_factor", "softmax_scale"])
@pytest.mark.parametrize("value", [MISSING, None, "2", True])
def test_missing_and_wrong_members_are_named(name: str, value: Any) -> None:
    found = "is missing" if value is MISSING else f"is {value!r}"
    with pytest.raises(RopeError, match=rf"Bare.{name} {found}; .* derived from rope_xp.scaling"):
        RoPE(scaling=structural(**{name: value}))


def test_factors_of_derived_rules_are_checked_too() -> None:
    @dataclass(frozen=True)
    class Hot(Slower):
        factor: float = 2.0
        attention_factor: float | None = None

    with pytest.raises(RopeError, match="Hot.effective_attention_factor is None; .* a positive"):
        RoPE(scaling=Hot())
    assert RoPE(scaling=Hot(attention_factor=1.5)).attention_factor == 1.5


def test_no_length_drops_a_rule() -> None:
    class Forgetful(Slower):
        def for_length(self, n: int) -> Any:
            """Return nothing, as a body that was left empty does."""

    rope = RoPE(scaling=Forgetful(2.0))
    with pytest.raises(RopeError, match=r"Forgetful.for_length\(100\) returned None; it must"):
        rope.for_length(100)


@pytest.mark.parametrize("scaling", ["yarn", {"factor": 2.0}, Slower, 4.0])
def test_what_is_no_rule_at_all(scaling: Any) -> None:
    with pytest.raises(TypeError, match="scaling must be a rule such as .* derived from"):
        RoPE(scaling=scaling)
