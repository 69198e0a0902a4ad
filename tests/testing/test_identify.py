"""identify and assert_rotates of functions that are right, and arguments that do not fit."""

import numpy as np
import pytest
from support.cases import slow

from rope_xp import RoPE, RopeError, scaling
from rope_xp.testing import Measured, assert_rotates, identify
from rope_xp.testing._compare import list_differences
from rope_xp.testing._open import CallError

HALF = RoPE(layout="half")
YARN = RoPE(scaling=scaling.YaRN(4.0, 4096))
ROPES = [
    RoPE(),
    RoPE(layout="interleaved_to_half"),
    slow(RoPE(layout="half", rotary_dim=32, rotary_offset=16)),
    RoPE(rotary_dim=32, rotary_offset=-32),
    slow(RoPE(scaling=scaling.Linear(2.5))),
    slow(RoPE(scaling=scaling.NTK(8.0))),
    RoPE(base=5e5, layout="half", scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192)),
    YARN,
    slow(RoPE(base=1.5e5, scaling=scaling.YaRN(32.0, 4096, truncate=False))),
    RoPE(layout="half", scaling=scaling.Proportional(0.25)),
    RoPE(scaling=Measured(tuple(0.9**i for i in range(1, 65, 2)), 1.25)),
    slow(RoPE(scaling=Measured(tuple(i % 3 * 0.9**i for i in range(1, 33))))),  # some stand still
    RoPE(rotary_dim=2),
    RoPE(layout="half", position_axes=(0,) * 8 + (1,) * 12 + (2,) * 12),
    slow(RoPE.axial((4, 4), layout="half")),
]


def by_rope(rope, axes="bhsd"):
    def function(q, k, positions):
        return rope.apply(q, k, positions, axes=axes)

    return function


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: str(rope).removeprefix("RoPE"))
def test_identify_finds_the_rope(rope):
    result = identify(by_rope(rope), 64)
    # Frequencies of no rule are measured to 1e-8, which a million of positions make 1e-2.
    assert list_differences(result.rope, rope, 64) == []
    assert (result.faults, result.passes) == ((), None)
    assert max(result.error.values()) < 2e-2
    assert result.frequencies == pytest.approx(rope.frequencies(64), rel=1e-5)
    assert_rotates(by_rope(rope), rope, 64)


def by_products(rope, rows=1 << 30):
    """Return a rotation by products in float32, whose table has so many rows."""
    w = rope.frequencies(64).astype(np.float32)

    def function(x, positions):
        if positions.max() >= rows:
            raise IndexError(f"there are {rows} rows")
        angles = positions.astype(np.float32)[:, None] * w
        tables = (np.float32(rope.attention_factor) * t(angles) for t in (np.cos, np.sin))
        return rope.with_tables(*tables).rotate(x, axes="bhsd")

    return function


@pytest.mark.parametrize(
    ("rope", "rows"), [(RoPE(), 1 << 30), (YARN, 1 << 30), (RoPE(), 131_072)], ids=str
)
def test_identify_and_assert_rotates_allow_errors_of_float32_unless_given_a_bound(rope, rows):
    function, w = by_products(rope, rows), rope.frequencies(64)
    result = identify(function, 64)
    assert list_differences(result.rope, rope, 64) == []
    assert result.faults == ()
    assert bool([note for note in result.notes if "from 131072 on are rejected" in note]) == (
        rows == 131_072
    )
    p = np.arange(131_072 - 9, 131_072)[:, None]
    worst = np.abs(np.exp(1j * (np.float32(p) * np.float32(w))) - np.exp(1j * p * w)).max()
    assert worst / 3 < result.error[131_072] < 1e-2
    assert result.passes is None if rows == 131_072 else 131_072 < result.passes < 1 << 20
    assert_rotates(function, rope, 64)
    with pytest.raises(AssertionError, match="allowed 1e-05"):
        assert_rotates(function, rope, 64, atol=1e-5)
    assert_rotates(by_rope(rope), rope, 64, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "rope"),
    [slow("float16", RoPE(scaling=scaling.Linear(2.5))), ("bfloat16", YARN), ("float64", HALF)],
    ids=str,
)
def test_identify_takes_the_dtype_of_like(dtype, rope):
    torch = pytest.importorskip("torch")
    dtypes, like = set(), torch.zeros(1, dtype=getattr(torch, dtype))

    def function(x, positions):
        dtypes.add(x.dtype)
        return rope.rotate(x, positions, axes="bhsd").requires_grad_()

    result = identify(function, 64, like=like)
    assert (result.rope.layout, result.faults) == (rope.layout, ())
    assert_rotates(function, rope, 64, like=like)
    assert dtypes == {like.dtype}


@pytest.mark.parametrize("axes", ["bshd", "sbhd", "hbsd"])
def test_identify_takes_axes(axes):
    function = by_rope(HALF, axes)
    assert identify(function, 32, axes=axes).rope == HALF
    assert_rotates(function, HALF, 32, axes=axes)


def test_identify_finds_parameters_of_dynamic_rules():
    rope = RoPE(layout="half", scaling=scaling.DynamicNTK(2.0, 2048))

    def function(x, positions):
        return rope.for_length(int(positions.max()) + 1).rotate(x, positions, axes="bhsd")

    result = identify(function, 32)
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
    ("options", "error", "message"),
    [
        ({"head_dim": 0}, RopeError, "head_dim must be positive"),
        ({"components": 0}, RopeError, "components must be positive"),
        ({"axes": "bhd"}, RopeError, r"axes must name b, h, s and d, each once, .*got 'bhd'"),
        ({"like": np.zeros(1, np.int32)}, RopeError, "like must be of float16, .*got int32"),
        ({"max_tokens": 8}, RopeError, "max_tokens must be at least 32; got 8"),
        ({"function": "rope"}, TypeError, "function must be callable; got str"),
    ],
)
def test_identify_refuses_arguments_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=message):
        identify(**{"function": by_rope(RoPE()), "head_dim": 16, **options})


def test_assert_rotates_refuses_a_rope_that_does_not_fit():
    with pytest.raises(TypeError, match="rope must be a"):
        assert_rotates(by_rope(RoPE()), "half", 16)
    with pytest.raises(RopeError, match="rotary_dim"):
        assert_rotates(by_rope(RoPE()), RoPE(rotary_dim=32), 16)


def test_measured_refuses_another_width_and_factors_that_are_not_positive():
    with pytest.raises(RopeError, match="Measured.values has 2 entries; 8 rotated"):
        RoPE(scaling=Measured((1.0, 0.5))).frequencies(8)
    with pytest.raises(RopeError, match="Measured.attention_factor must be positive"):
        Measured((1.0,), 0.0)
    assert RoPE(scaling=Measured((1.0,), 1.5)).attention_factor == 1.5
