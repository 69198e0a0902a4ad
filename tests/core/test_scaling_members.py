"""Fields and members of scalings, also of those that users write."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.rules import Times, Warm

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import LongRoPE, YaRN

Q = np.random.default_rng(0).standard_normal((1, 5, 2, 16)).astype(np.float32)


SCALINGS = {
    "yarn": YaRN(4.0, 4096),
    "subclass": Warm(4.0, 4096, warmth=2.0),
    "longrope": LongRoPE((1.0,), (2.0,), 4096, factor=4.0),
}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


@every_scaling
def test_the_attention_factor_of_a_replaced_scaling_follows_its_factor(scaling):
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
def test_scalings_pass_through_pydantic(scaling):
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(type(scaling))
    assert adapter.validate_json(adapter.dump_json(scaling)) == scaling


def test_scalings_built_within_a_graph_rotate_as_outside():
    torch = pytest.importorskip("torch")
    long = RoPE(scaling=LongRoPE((1.0,) * 8, (1.0, 2.0) * 4, 64, factor=4.0))

    def rotate(q: Any) -> Any:
        ropes = RoPE(scaling=YaRN(4.0, 64)), long.for_length(100), RoPE(scaling=Times(1 / 3))
        return tuple(rope.rotate(q) for rope in ropes)

    q = torch.from_numpy(Q)
    torch._dynamo.reset()
    compiled = torch.compile(rotate, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), rotate(q), rtol=0, atol=1e-6)


def test_scalings_with_frequencies_alone_have_factors_of_1():
    rope = RoPE(scaling=Times(0.25))
    assert (rope.attention_factor, rope.softmax_scale) == (1.0, 1.0)
    assert rope.for_length(100) is rope
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=rope_xp.scaling.Linear(4.0)).rotate(Q))


MISSING = object()


def build_bare_scaling(**members: Any) -> Any:
    """Return a scaling without a base class, with all members but those that are MISSING."""
    members = {
        "frequencies": Times.frequencies,
        "for_length": lambda self, n: self,
        **dict.fromkeys(("effective_attention_factor", "softmax_scale"), 1.0),
        "factor": 2.0,
    } | members
    return type("Bare", (), {k: v for k, v in members.items() if v is not MISSING})()


def test_scalings_without_a_base_class_are_taken():
    rope = RoPE(scaling=build_bare_scaling())
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=Times(2.0)).rotate(Q))


@pytest.mark.parametrize("name", ["for_length", "effective_attention_factor", "softmax_scale"])
@pytest.mark.parametrize("value", [MISSING, None, "2", True])
def test_missing_and_wrong_members_of_scalings_are_named(name, value):
    state = "is missing" if value is MISSING else f"is {value!r}"
    with pytest.raises(RopeError, match=rf"Bare.{name} {state}; .* class from rope_xp.scaling"):
        RoPE(scaling=build_bare_scaling(**{name: value}))


def test_attention_factors_of_derived_scalings_are_checked():
    @dataclass(frozen=True)
    class Hot(Times):
        factor: float = 2.0
        attention_factor: float | None = None

    with pytest.raises(RopeError, match="Hot.effective_attention_factor is None; .* a positive"):
        RoPE(scaling=Hot())
    assert RoPE(scaling=Hot(attention_factor=1.5)).attention_factor == 1.5


def test_a_for_length_that_returns_none_is_refused():
    class Forgetful(Times):
        def for_length(self, n: int) -> Any:
            """Return None."""

    rope = RoPE(scaling=Forgetful(2.0))
    with pytest.raises(RopeError, match=r"Forgetful.for_length\(100\) returned None; it must"):
        rope.for_length(100)
