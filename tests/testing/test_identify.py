"""identify and assert_rotates of functions that are right."""

import math

import numpy as np
import pytest
from support.cases import slow
from support.planted import HALF, HEAD_DIM, SECTIONS

from rope_xp import RoPE, RopeError, scaling
from rope_xp.testing import Measured, assert_rotates, identify
from rope_xp.testing._compare import list_differences
from rope_xp.testing._open import CallError

ROPES = {
    "plain": RoPE(),
    "half": RoPE(layout="half", base=5e5),
    "to half": RoPE(layout="interleaved_to_half"),
    "slice": RoPE(layout="half", rotary_dim=32, rotary_offset=16),
    "trailing": RoPE(rotary_dim=32, rotary_offset=-32),
    "linear": RoPE(scaling=scaling.Linear(2.5)),
    "ntk": RoPE(scaling=scaling.NTK(8.0)),
    "llama3": RoPE(base=5e5, layout="half", scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192)),
    "yarn": RoPE(scaling=scaling.YaRN(4.0, 4096)),
    "yarn, not rounded": RoPE(base=1.5e5, scaling=scaling.YaRN(32.0, 4096, truncate=False)),
    "proportional": RoPE(layout="half", scaling=scaling.Proportional(0.25)),
    "measured": RoPE(scaling=Measured(tuple(0.9**i for i in range(1, 65, 2)), 1.25)),
    "one pair": RoPE(rotary_dim=2),
}


def by_rope(rope):
    def function(q, k, positions):
        return rope.apply(q, k, positions, axes="bhsd")

    return function


LATER = ("half", "slice", "linear", "ntk", "yarn, not rounded")


@pytest.mark.parametrize("name", [slow(n) if n in LATER else n for n in ROPES])
def test_identify_finds_the_rope(name):
    rope = ROPES[name]
    result = identify(by_rope(rope), 64)
    # Frequencies of no rule are measured to 1e-8, which a million of positions make 1e-2.
    assert list_differences(result.rope, rope, 64) == []
    assert result.faults == ()
    assert result.passes is None
    assert max(result.error.values()) < 2e-2
    assert result.frequencies == pytest.approx(rope.frequencies(64), rel=1e-5)
    assert_rotates(by_rope(rope), rope, 64)


def in_float32(x, positions):
    n = x.shape[-1] // 2
    w = np.float32(1.0) / np.float32(10000.0) ** (np.arange(n, dtype=np.float32) / n)
    angles = positions.astype(np.float32)[:, None] * w
    return RoPE().with_tables(np.cos(angles), np.sin(angles)).rotate(x, axes="bhsd")


def test_identified_errors_are_those_of_cos_and_sin():
    result = identify(in_float32, 64)
    assert (result.rope, result.faults) == (RoPE(), ())
    p, exact = np.arange(131_072 - 9, 131_072)[:, None], 10000.0 ** (-np.arange(32) / 32)
    w = np.float32(1.0) / np.float32(10000.0) ** (np.arange(32, dtype=np.float32) / 32)
    worst = np.abs(np.exp(1j * (p.astype(np.float32) * w)) - np.exp(1j * p * exact)).max()
    assert max(worst / 3, 1e-3) < result.error[131_072] < 1e-2
    assert 131_072 < result.passes < 1 << 20


@pytest.mark.parametrize(
    ("dtype", "name"), [slow("float16", "linear"), ("bfloat16", "yarn"), ("float64", "half")]
)
def test_identify_of_other_dtypes_finds_the_rope(dtype, name):
    torch = pytest.importorskip("torch")
    like = torch.zeros(1, dtype=getattr(torch, dtype))
    result = identify(by_rope(ROPES[name]), 64, like=like)
    assert result.faults == ()
    assert result.rope.layout == ROPES[name].layout
    assert_rotates(by_rope(ROPES[name]), ROPES[name], 64, like=like)


@pytest.mark.parametrize("axes", ["bshd", "sbhd", "hbsd"])
def test_identify_of_other_axes_finds_the_rope(axes):
    def function(x, positions):
        return HALF.rotate(x, positions, axes=axes)

    assert identify(function, 32, axes=axes).rope == HALF
    assert_rotates(function, HALF, 32, axes=axes)


def test_identify_finds_components_of_positions():
    def function(q, k, positions):
        assert positions.ndim == 3  # (components, 1, tokens), as of M-RoPE
        return SECTIONS.apply(q, k, positions, axes="bhsd")

    for components in (None, 3):
        result = identify(function, HEAD_DIM, components=components)
        assert (result.rope, result.faults) == (SECTIONS, ())
    assert_rotates(function, SECTIONS, HEAD_DIM)


def test_identify_finds_parameters_of_dynamic_rules():
    rope = RoPE(layout="half", scaling=scaling.DynamicNTK(2.0, 2048))

    def function(x, positions):
        return rope.for_length(int(positions.max()) + 1).rotate(x, positions, axes="bhsd")

    result = identify(function, HEAD_DIM)
    assert result.rope == rope
    assert len([fault for fault in result.faults if "change beyond 2048" in fault]) == 1


@pytest.mark.parametrize("name", ["numpy", "torch", slow("jax.numpy")])
def test_identify_finds_the_library_that_a_function_takes(name):
    module = pytest.importorskip(name)
    kind, kinds = type(module.zeros(1)), []

    def function(q, k, positions):
        if not isinstance(q, kind):
            raise TypeError("not an array of mine")
        kinds.append(type(q))
        return RoPE().apply(q, k, positions, axes="bhsd")

    assert identify(function, 16, max_tokens=64).faults == ()
    assert set(kinds) == {kind}
    with pytest.raises(AssertionError, match="layout is 'interleaved', and not 'half'"):
        assert_rotates(function, HALF, 16, like=module.zeros(1))
    if name == "torch":  # and a module of it
        members = {"forward": lambda _, q, k, positions: function(q, k, positions)}
        assert identify(type("Rotary", (module.nn.Module,), members)(), 16).rope == RoPE()


def test_identify_of_a_function_that_refuses_tells_the_first_error():
    def refuses(x, positions):
        raise ValueError("heads must be 8")

    message = (
        r"could not call refuses with x of shape \(b, h, s, 16\); first error: ValueError: heads "
        r"must be 8\. Pass a fitting head_dim, axes, heads, components or tables, or like= an"
    )
    with pytest.raises(CallError, match=message) as raised:
        identify(refuses, 16)
    assert raised.value.summary.endswith("first error: ValueError: heads must be 8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 0}, "head_dim must be positive"),
        ({"components": 0}, "components must be positive"),
        ({"axes": "bhd"}, r"axes must name b, h, s and d, each once, .*got 'bhd'"),
        ({"like": np.zeros(1, np.int32)}, "like must be of float16, .*got int32"),
    ],
)
def test_identify_refuses_arguments_that_do_not_fit(options, message):
    with pytest.raises(RopeError, match=message):
        identify(by_rope(RoPE()), **{"head_dim": 16, **options})


def test_identify_refuses_arguments_of_the_wrong_type():
    with pytest.raises(TypeError, match="function must be callable; got str"):
        identify("rope", 16)
    with pytest.raises(TypeError, match="rope must be a"):
        assert_rotates(by_rope(RoPE()), "half", 16)
    with pytest.raises(RopeError, match="rotary_dim"):
        assert_rotates(by_rope(RoPE()), RoPE(rotary_dim=32), 16)


def test_assert_rotates_keeps_a_bound_that_is_given():
    assert_rotates(in_float32, RoPE(), 32)
    with pytest.raises(AssertionError, match="allowed 1e-05"):
        assert_rotates(in_float32, RoPE(), 32, atol=1e-5)
    assert_rotates(by_rope(RoPE()), RoPE(), 32, atol=1e-5)


def test_measured_frequencies_refuse_another_width():
    with pytest.raises(RopeError, match="Measured.values has 2 entries; 8 rotated"):
        RoPE(scaling=Measured((1.0, 0.5))).frequencies(8)
    with pytest.raises(RopeError, match="Measured.attention_factor must be positive"):
        Measured((1.0,), 0.0)
    assert math.isclose(RoPE(scaling=Measured((1.0,), 1.5)).attention_factor, 1.5)
