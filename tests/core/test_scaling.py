"""Scalings against transformers, properties of their papers, their members and errors."""

import copy
import dataclasses
import inspect
import math
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.rules import Times, Warm

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core.numbers import get_attributes
from rope_xp.scaling import (
    NTK,
    Axial,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
    inverse_frequencies,
)

HEAD_DIM, BASE = 64, 500_000.0
SHORT = tuple(1.0 + 0.01 * i for i in range(HEAD_DIM // 2))
LONG = tuple(1.0 + 1.5 * i for i in range(HEAD_DIM // 2))

# rope_type of transformers, its keys besides rope_theta, a length, and the scaling.
CASES: list[tuple[str, dict[str, Any], int | None, Scaling]] = [
    ("linear", {"factor": 3.5}, None, Linear(3.5)),
    *(
        ("dynamic", {"factor": 2.5}, n, DynamicNTK(2.5, 2048, n))
        for n in (2048, 9000)
    ),
    *(
        ("yarn", {"original_max_position_embeddings": 2048} | keys, None, YaRN(
            original_max_position_embeddings=2048, **keys
        ))
        for keys in (
            {"factor": 8.0},
            {"factor": 0.5},
            {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
            {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
            {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0},
            {"factor": 16.0, "beta_fast": 64.0, "beta_slow": 2.5, "truncate": False},
            {"factor": 16.0, "beta_fast": 2.0, "beta_slow": 2.0},
            {"factor": 4.0, "attention_factor": 1.25},
        )
    ),
    *(
        ("longrope", dict(short_factor=list(SHORT), long_factor=list(LONG), **keys), n, LongRoPE(
            SHORT, LONG, length=n, **keys
        ))
        for keys in (
            {"original_max_position_embeddings": 1024, "factor": 4.0},
            {"original_max_position_embeddings": 1024, "factor": 0.5},
            {"original_max_position_embeddings": 1024, "factor": 4.0, "attention_factor": 1.125},
        )
        for n in (1024, 1025)
    ),
    *(
        ("llama3", {
            "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": 1000,
        }, None, Llama3(8.0, low, high, 1000))
        for low, high in ((1.0, 4.0), (0.5, 0.75), (3.0, 30.0), (1.0, 1.0))
    ),
    ("proportional", {"partial_rotary_factor": 0.25}, None, Proportional(0.25)),
    ("proportional", {"partial_rotary_factor": 0.33, "factor": 2.0}, None, Proportional(0.33, 2.0)),
]  # fmt: skip


# Ends of the ramp beyond the pairs, beyond all components, before the first pair, and both there.
RAMPS = [
    ("yarn", keys, None, YaRN(**keys), base)
    for base, trained in ((100.0, 2048), (10.0, 700), (1e4, 100), (1e4, 6))
    for truncate in (True, False)
    for keys in [{"factor": 4.0, "original_max_position_embeddings": trained, "truncate": truncate}]
]


@pytest.mark.parametrize(
    ("name", "keys", "length", "scaling", "base"), [*((*case, BASE) for case in CASES), *RAMPS]
)
def test_frequencies_of_rules_equal_transformers(name, keys, length, scaling, base):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        head_dim=HEAD_DIM,
        hidden_size=HEAD_DIM * 4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": name, "rope_theta": base, **keys},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[name](config, "cpu", seq_len=length)
    ours = RoPE(base=base, scaling=scaling)
    # float32 powers, products and quotients of transformers: a few units of 6e-8
    np.testing.assert_allclose(ours.frequencies(HEAD_DIM), theirs.numpy(), rtol=5e-7, atol=0)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-12)


def test_ntk_divides_the_slowest_pair_by_the_factor():
    for r in (4, 64, 128):
        ratio = inverse_frequencies(BASE, r) / NTK(8.0).frequencies(BASE, r)
        assert ratio[0] == 1.0
        assert ratio[-1] == pytest.approx(8.0, rel=1e-13)
        # a geometric series between
        np.testing.assert_allclose(ratio, 8.0 ** (np.arange(r // 2) / (r / 2 - 1)), rtol=1e-13)


def test_softmax_scale_of_yarn_is_never_folded_in():
    scaling = YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert scaling.effective_attention_factor == 1.0
    assert RoPE(scaling=scaling).softmax_scale == pytest.approx((0.1 * math.log(40.0) + 1.0) ** 2)
    assert YaRN(40.0, 4096).softmax_scale == 1.0


needs_length = pytest.mark.parametrize(
    "scaling", [DynamicNTK(4.0, 512), LongRoPE(SHORT, LONG, 512, 4.0)]
)


@needs_length
def test_scalings_that_need_a_length_say_so(scaling):
    rope, x = RoPE(scaling=scaling), np.ones((3, 2, HEAD_DIM), np.float32)
    for use in (lambda: rope.rotate(x), lambda: rope.frequencies(HEAD_DIM)):
        with pytest.raises(RopeError, match=r"depend on the length .* rope.for_length\(n\)"):
            use()
    fixed = rope.for_length(600)
    assert fixed.scaling.length == 600
    assert fixed.rotate(x).shape == x.shape
    with pytest.raises(RopeError, match="n "):
        rope.for_length(0)


@needs_length
def test_cached_keys_migrate_to_the_rule_of_a_longer_context(scaling, rng):
    raw, p = rng.standard_normal((300, 2, HEAD_DIM)).astype(np.float32), np.arange(300) + 213
    rope = RoPE(base=BASE, layout="half", scaling=scaling)
    short, long = rope.for_length(512), rope.for_length(2048)
    moved = short.rerotate(short.rotate(raw, p), p, p, to=long)
    # Two tables of 3.4e-7, one composition, the rounding of two rotations, |x| up to 5.
    np.testing.assert_allclose(moved, long.rotate(raw, p), rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    "scaling", [*(case[-1] for case in CASES), NTK(2.0), Axial(2), Warm(4.0, 4096, warmth=2.0)]
)
def test_scalings_are_values_that_can_be_copied_hashed_and_pickled(scaling):
    assert isinstance(scaling, Scaling)
    values = dataclasses.asdict(scaling)
    names = [field.name for field in dataclasses.fields(scaling)]
    assert [*values] == names == [*inspect.signature(type(scaling)).parameters]
    # torch.compile lists the fields of our own classes alone.
    assert values == vars(scaling) == get_attributes(scaling)
    copies = pickle.loads(pickle.dumps(scaling)), copy.deepcopy(scaling), copy.copy(scaling)
    for copied in (*copies, type(scaling)(**values), replace(scaling)):
        assert copied == scaling
        assert hash(copied) == hash(scaling)
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    assert type(scaling)(**lists) == scaling
    assert eval(repr(scaling), vars(rope_xp.scaling) | {"Warm": Warm}) == scaling


FEW = LongRoPE(SHORT, (1.0, 1.0), 512, 4.0, length=513)
WRONG: list[tuple[str, Any]] = [
    ("NTK needs two pairs", lambda: NTK(2.0).frequencies(1e4, 2)),
    ("DynamicNTK.max_position_embeddings must be positive", lambda: DynamicNTK(2.0, 0)),
    ("YaRN.beta_fast must not be below beta_slow = 2.0; got 1.0", lambda: YaRN(2.0, 512, 1.0, 2.0)),
    ("YaRN.beta_slow must be positive", lambda: YaRN(2.0, 512, 32.0, 0.0)),
    ("YaRN.attention_factor must be positive", lambda: YaRN(2.0, 512, attention_factor=0.0)),
    ("YaRN.mscale must be at least 0", lambda: YaRN(2.0, 512, mscale=-1.0)),
    (r"LongRoPE.short_factor\[1\] must be positive", lambda: LongRoPE((1.0, 0.0), (1.0, 1.0), 512)),
    ("LongRoPE needs factor, max_position_embeddings", lambda: LongRoPE(SHORT, LONG, 512)),
    ("LongRoPE.long_factor is empty", lambda: LongRoPE(SHORT, (), 512, 4.0)),
    ("must exceed 1; got 1", lambda: LongRoPE(SHORT, LONG, 1, 4.0)),
    (
        "LongRoPE.long_factor has 2 entries; 64 rotated components have 32 pairs",
        lambda: FEW.frequencies(1e4, 64),
    ),
    ("Llama3.high_freq_factor must not be below low_freq", lambda: Llama3(8.0, 4.0, 3.9, 8192)),
    ("Axial.axes = 2 does not divide 3", lambda: Axial(2).frequencies(1e4, 6)),
    ("Proportional.partial_rotary_factor must be above 0", lambda: Proportional(1.5)),
]
NO_NUMBERS: list[tuple[str, Any]] = [
    ("max_position_embeddings must be an integer", lambda: DynamicNTK(2.0, 512.0)),
    ("LongRoPE.short_factor must be a tuple", lambda: LongRoPE("12", LONG, 512, 4.0)),
]


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [*((RopeError, *case) for case in WRONG), *((TypeError, *case) for case in NO_NUMBERS)],
)
def test_impossible_fields_of_scalings_are_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()


# --- members, also of scalings that users write ---------------------------------------------------

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


@pytest.mark.slow
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
