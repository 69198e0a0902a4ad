"""Scalings against transformers, properties of their papers, their members and errors."""

import copy
import dataclasses
import inspect
import math
import pickle
from dataclasses import replace
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
    RIFLEx,
    Scaling,
    YaRN,
    inverse_frequencies,
)

HEAD_DIM, BASE = 64, 500_000.0
SHORT = tuple(1.0 + 0.01 * i for i in range(HEAD_DIM // 2))
LONG = tuple(1.0 + 1.5 * i for i in range(HEAD_DIM // 2))
NAMES = {DynamicNTK: "dynamic", Llama3: "llama3", LongRoPE: "longrope"}
NAMES |= {Linear: "linear", Proportional: "proportional", YaRN: "yarn"}

CASES: list[tuple[float, Scaling]] = [
    (BASE, Linear(3.5)),
    (BASE, Proportional(0.33, 2.0)),
    *((BASE, DynamicNTK(2.5, 2048, n)) for n in (2048, 9000)),
    *((BASE, Llama3(8.0, *ends, 1000)) for ends in ((1.0, 4.0), (0.5, 0.75), (1.0, 1.0))),
    *((BASE, LongRoPE(SHORT, LONG, 1024, 4.0, length=n)) for n in (1024, 1025)),
    (BASE, LongRoPE(SHORT, LONG, 1024, 0.5, length=9)),
    (BASE, LongRoPE(SHORT, LONG, 1024, 4.0, attention_factor=1.125, length=9)),
    (BASE, YaRN(8.0, 2048)),
    (BASE, YaRN(0.5, 2048)),
    *((BASE, YaRN(40.0, 2048, mscale=m, mscale_all_dim=a)) for m, a in ((0.707, 1.0), (1.0, 0.0))),
    (BASE, YaRN(16.0, 2048, 64.0, 2.5, truncate=False)),
    (BASE, YaRN(16.0, 2048, 2.0, 2.0)),
    (BASE, YaRN(4.0, 2048, attention_factor=1.25)),
    # Ends of the ramp beyond the pairs, beyond all components, before the first, and both there.
    *((b, YaRN(4.0, n)) for b, n in ((100.0, 2048), (10.0, 700), (1e4, 100), (1e4, 6))),
    *((b, YaRN(4.0, n, truncate=False)) for b, n in ((100.0, 2048), (10.0, 700), (1e4, 6))),
]


@pytest.mark.parametrize(("base", "scaling"), CASES)
def test_frequencies_of_rules_equal_transformers(base, scaling):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keys = {k: v for k, v in vars(scaling).items() if v is not None}
    length, name = keys.pop("length", None), NAMES[type(scaling)]
    keys.pop("max_position_embeddings", None)
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
    for r in (4, 128):  # a geometric series between
        ratio = inverse_frequencies(BASE, r) / NTK(8.0).frequencies(BASE, r)
        np.testing.assert_allclose(ratio, 8.0 ** (np.arange(r // 2) / (r / 2 - 1)), rtol=1e-13)


def test_softmax_scale_of_yarn_is_never_folded_in():
    scaling = YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert scaling.effective_attention_factor == 1.0
    assert RoPE(scaling=scaling).softmax_scale == pytest.approx((0.1 * math.log(40.0) + 1.0) ** 2)
    assert YaRN(40.0, 4096).softmax_scale == 1.0


@pytest.mark.parametrize("scaling", [DynamicNTK(4.0, 512), LongRoPE(SHORT, LONG, 512, 4.0)])
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


def convert_to_numpy(value: Any) -> Any:
    """Return a number, or those of a tuple, as a user who computed them with numpy has them."""
    if isinstance(value, tuple):
        return tuple(map(convert_to_numpy, value))
    return {int: np.int32, float: np.float64}.get(type(value), lambda v: v)(value)


ONE_OF_EACH = {type(scaling): scaling for _, scaling in CASES}.values()


# All fields of those with many.
FULL = [YaRN(4.0, 4096, 32.0, 1.0, 1.5, 0.5, 0.25), Axial(2, bases=(1e2, 1e3))]
FULL += [LongRoPE((1.0,), (2.0,), 64, 4.0, 1.5, 256, 99), Warm(4.0, 4096, warmth=2.0)]


@pytest.mark.parametrize("scaling", [*ONE_OF_EACH, NTK(2.0), *FULL])
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
    if type(scaling) is not Warm:  # whose own field nobody checks
        of_numpy = type(scaling)(**{k: convert_to_numpy(v) for k, v in values.items()})
        for describe in (hash, repr, pickle.dumps):
            assert describe(of_numpy) == describe(scaling)


Q = np.random.default_rng(0).standard_normal((1, 5, 2, 16)).astype(np.float32)


@pytest.mark.parametrize("scaling", [YaRN(4.0, 4096), LongRoPE((1.0,), (2.0,), 4096, factor=4.0)])
def test_the_attention_factor_of_a_replaced_scaling_follows_its_factor(scaling):
    assert scaling.attention_factor is None
    assert RoPE(scaling=scaling).attention_factor == scaling.effective_attention_factor > 1.0
    longer = replace(scaling, factor=8.0)
    assert longer.effective_attention_factor > scaling.effective_attention_factor
    assert replace(longer, factor=4.0) == scaling
    fixed = replace(scaling, attention_factor=1.5)
    assert replace(fixed, factor=8.0).effective_attention_factor == 1.5


@pytest.mark.slow
def test_scalings_built_within_a_graph_rotate_as_outside():
    torch = pytest.importorskip("torch")
    long = RoPE(scaling=LongRoPE((1.0,) * 8, (1.0, 2.0) * 4, 64, factor=4.0))

    def rotate(q: Any) -> Any:
        ropes = RoPE(scaling=YaRN(4.0, 64)), long.for_length(100), RoPE(scaling=Times(1 / 3))
        return tuple(rope.rotate(q) for rope in ropes)

    q = torch.from_numpy(Q)
    expected = rotate(q)  # first, as it makes torch known, whose tracing caches are to notice
    torch._dynamo.reset()
    compiled = torch.compile(rotate, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), expected, rtol=0, atol=1e-6)


def test_scalings_with_frequencies_alone_have_factors_of_1():
    rope = RoPE(scaling=Times(0.25))
    assert (rope.attention_factor, rope.softmax_scale) == (1.0, 1.0)
    assert rope.for_length(100) is rope
    assert np.array_equal(rope.rotate(Q), RoPE(scaling=Linear(4.0)).rotate(Q))


@pytest.mark.parametrize("name", ["effective_attention_factor", "softmax_scale"])
@pytest.mark.parametrize("value", [None, "2", True, 0.0, math.inf])
def test_factors_of_derived_scalings_are_checked(name, value):
    error, needed = (
        (RopeError, "positive and") if isinstance(value, float) else (TypeError, "a num")
    )
    with pytest.raises(error, match=f"Hot.{name} must be {needed}.*; got {value!r}"):
        RoPE(scaling=type("Hot", (Times,), {name: value})(2.0))


@pytest.mark.parametrize(
    ("riflex", "changed"),
    [
        (RIFLEx(4, 42), 3),
        (RIFLEx(8, 42, Axial(sections=(16, 56, 56))), 7),  # HunyuanVideo
        # frame, row, frame, row, row, row
        (RIFLEx(3, 42, Axial(sections=(4, 8), order="alternating"), axis=1), 4),
    ],
)
def test_riflex_slows_one_frequency_of_one_axis_alone(riflex, changed):
    r = 12 if riflex.axis else 128
    expected = (riflex.scaling or Linear(1.0)).frequencies(256.0, r).copy()
    expected[changed] = 0.9 * 2 * math.pi / 42  # as in the code of the paper
    np.testing.assert_allclose(riflex.frequencies(256.0, r), expected, rtol=1e-14)
