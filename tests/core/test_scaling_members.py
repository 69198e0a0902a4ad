"""Fields and members of scalings, also of those that users write."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import LongRoPE, Scaling, YaRN, inverse_frequencies

Q = np.random.default_rng(0).standard_normal((1, 5, 2, 16)).astype(np.float32)


@dataclass(frozen=True)
class Warm(YaRN):
    """A scaling of a user, with one more field."""

    warmth: float = 1.0


SCALINGS = {
    "yarn": YaRN(4.0, 4096),
    "subclass": Warm(4.0, 4096, warmth=2.0),
    "longrope": LongRoPE((1.0,), (2.0,), 4096, factor=4.0),
}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


@every_scaling
def test_a_replaced_scaling_follows_its_factor(scaling):
    assert scaling.attention_factor is None
    assert RoPE(scaling=scaling).attention_factor == scaling.effective_attention_factor > 1.0
    longer = replace(scaling, factor=8.0)
    assert longer == type(scaling)(**{**vars(scaling), "factor": 8.0})
    assert longer.effective_attention_factor > scaling.effective_attention_factor
    assert replace(longer, factor=4.0) == scaling
    fixed = replace(scaling, attention_factor=1.5)
    assert fixed.attention_factor == fixed.effective_attention_factor == 1.5
    assert replace(fixed, factor=8.0).effective_attention_factor == 1.5
    assert replace(fixed, attention_factor=None) == scaling


@every_scaling
def test_pydantic_sees_all_fields(scaling):
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(type(scaling))
    assert adapter.validate_json(adapter.dump_json(scaling)) == scaling


def test_scalings_are_built_within_a_graph():
    torch = pytest.importorskip("torch")
    long = RoPE(scaling=LongRoPE((1.0,) * 8, (1.0, 2.0) * 4, 64, factor=4.0))

    def rotate(q: Any) -> Any:
        return (
            RoPE(scaling=YaRN(4.0, 64)).rotate(q),
            long.for_length(100).rotate(q),
            RoPE(scaling=Slower(3.0)).rotate(q),
        )

    q = torch.from_numpy(Q)
    torch._dynamo.reset()
    compiled = torch.compile(rotate, fullgraph=True, backend="eager")
    for result, expected in zip(compiled(q), rotate(q), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Slower(Scaling):
    """A scaling with frequencies alone."""

    factor: float

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return inverse_frequencies(base, rotary_dim) / self.factor


def test_the_base_class_has_defaults():
    rope = RoPE(scaling=Slower(4.0))
    assert (rope.attention_factor, rope.softmax_scale) == (1.0, 1.0)
    assert rope.for_length(100) is rope
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=rope_xp.scaling.Linear(4.0)).rotate(Q))


def test_a_scaling_needs_frequencies():
    class Nothing(Scaling):
        pass

    with pytest.raises(TypeError, match="abstract method '?frequencies"):
        Nothing()  # type: ignore[abstract]  # the mistake


MISSING = object()


def build_bare_scaling(**members: Any) -> Any:
    """Return a scaling without a base class, with all members but those that are MISSING."""
    members = {
        "frequencies": Slower.frequencies,
        "for_length": lambda self, n: self,
        **dict.fromkeys(("effective_attention_factor", "softmax_scale"), 1.0),
        "factor": 2.0,
    } | members
    return type("Bare", (), {k: v for k, v in members.items() if v is not MISSING})()


def test_a_scaling_needs_no_base_class():
    rope = RoPE(scaling=build_bare_scaling())
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=Slower(2.0)).rotate(Q))


@pytest.mark.parametrize("name", ["for_length", "effective_attention_factor", "softmax_scale"])
@pytest.mark.parametrize("value", [MISSING, None, "2", True])
def test_missing_and_wrong_members_are_named(name, value):
    state = "is missing" if value is MISSING else f"is {value!r}"
    with pytest.raises(RopeError, match=rf"Bare.{name} {state}; .* class from rope_xp.scaling"):
        RoPE(scaling=build_bare_scaling(**{name: value}))


def test_factors_of_derived_scalings_are_checked():
    @dataclass(frozen=True)
    class Hot(Slower):
        factor: float = 2.0
        attention_factor: float | None = None

    with pytest.raises(RopeError, match="Hot.effective_attention_factor is None; .* a positive"):
        RoPE(scaling=Hot())
    assert RoPE(scaling=Hot(attention_factor=1.5)).attention_factor == 1.5


def test_no_length_drops_a_scaling():
    class Forgetful(Slower):
        def for_length(self, n: int) -> Any:
            """Return None."""

    rope = RoPE(scaling=Forgetful(2.0))
    with pytest.raises(RopeError, match=r"Forgetful.for_length\(100\) returned None; it must"):
        rope.for_length(100)


@pytest.mark.parametrize("scaling", ["yarn", {"factor": 2.0}, Slower, 4.0])
def test_objects_that_are_no_scaling(scaling):
    with pytest.raises(TypeError, match="scaling must be an instance such as .* derived from"):
        RoPE(scaling=scaling)
