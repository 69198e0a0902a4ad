"""What calls are refused, of any backend, and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from support.targets import Target

import rope_xp
from rope_xp import RoPE, RopeConfigError, RopeError

Q = np.ones((2, 9, 4, 8), np.float32)
K = np.ones((2, 9, 2, 8), np.float32)
# (options of apply, error, message)
CALLS = [
    ({"rope": RoPE(), "base": 5e5}, TypeError, "both rope and its fields .base."),
    ({"theta": 5e5}, TypeError, "unknown option theta; a RoPE has base, layout"),
    ({"rope": {"base": 5e5}}, TypeError, "rope must be a rope_xp.RoPE; got {'base'"),
    ({"rotary_dim": 10}, RopeError, "rotary_dim=10 components from rotary_offset=0"),
    ({"rotary_dim": 4, "rotary_offset": 5}, RopeError, "does not lie within head_dim=8"),
    ({"rotary_dim": 4, "rotary_offset": -3}, RopeError, "does not lie within head_dim=8"),
    ({"rotary_dim": 4, "rotary_offset": -9}, RopeError, "does not lie within head_dim=8"),
    ({"rotary_offset": 2}, RopeError, "does not lie within head_dim=8"),
    ({"position_axes": (0, 1)}, RopeError, "2 entries; 8 rotated components have 4 pairs"),
    ({"axes": "bshx"}, RopeError, "has no head_dim axis 'd'"),
    ({"axes": "bhxd"}, RopeError, "has no tokens axis 's'"),
    ({"axes": "bssd"}, RopeError, "names an axis twice"),
    ({"axes": "bsdh"}, RopeError, "does not end in head_dim 'd'"),
    ({"axes": "b sd"}, RopeError, "not lower-case letters"),
    ({"axes": "BSHD"}, RopeError, "not lower-case letters"),
    ({"axes": ""}, RopeError, "lower-case"),
    ({"axes": 4}, TypeError, "axes must be a string"),
    ({"axes": ("b", "s", "h", "d")}, TypeError, "axes must be a string"),
    ({"axes": "shd"}, RopeError, "axes='shd' names 3 axes; q has 4"),
    ({"axes": "bhsd"}, RopeError, "differ in tokens .axes='bhsd'.: 4 and 2.*k_positions"),
    ({"positions": 5}, RopeError, r"one number for 9 tokens; write positions = offset \+ arange"),
    ({"positions": np.array(5)}, RopeError, r"offset \+ arange\(9\)"),
    ({"positions": np.arange(8)}, RopeError, r"shape \(8,\); it must broadcast to .* = \(2, 9\)"),
    ({"positions": np.zeros((3, 9))}, RopeError, r"shape \(3, 9\); it must broadcast"),
    ({"positions": np.zeros((9, 2))}, RopeError, r"shape \(9, 2\).*batch first.*axes right"),
    ({"positions": np.zeros((1, 2, 9))}, RopeError, r"shape \(1, 2, 9\)"),
    ({"positions": np.zeros(9, bool)}, TypeError, "positions must hold integers or real .* bool"),
    ({"positions": [True] * 9}, TypeError, "positions must hold .* bool"),
    ({"positions": np.zeros(9, complex)}, TypeError, "positions must hold .* complex128"),
    ({"positions": ["a"] * 9}, TypeError, "positions must hold"),
    ({"positions": [None] * 9}, TypeError, "positions must hold .* object"),
    ({"positions": [[1, 2], [3]]}, RopeError, "positions is a ragged list"),
    ({"positions": "012345678"}, TypeError, "positions"),
    ({"positions": {}}, TypeError, "positions"),
    ({"k_positions": np.arange(3)}, RopeError, r"k_positions has shape \(3,\)"),
    ({"k_positions": 3}, RopeError, r"k_positions has shape \(\), which is one number for 9"),
]


@pytest.mark.parametrize(("options", "error", "message"), CALLS, ids=lambda a: str(a)[:40])
def test_apply(options: dict, error: type, message: str) -> None:
    out = (np.zeros_like(Q), np.zeros_like(K))
    with pytest.raises(error, match=message):
        rope_xp.apply(Q, K, out=out, **options)
    assert not out[0].any()
    assert not out[1].any()
    with pytest.raises(error, match=message):
        rope_xp.explain(Q, K, **options)


# (q, k, error, message)
ARRAYS = [
    (Q.astype(int), K, TypeError, r"q is a numpy array of shape .* dtype int64; it must hold"),
    (Q, K.astype(bool), TypeError, "k is .* dtype bool"),
    (Q.astype(complex), K, TypeError, "q is .* dtype complex128"),
    (Q.astype(object), K, TypeError, "q is .* dtype object"),
    (Q.tolist(), K, TypeError, "q is a list, which is no array of numpy, torch"),
    (None, K, TypeError, "q is a NoneType, which is no array"),
    (Q, 1.0, TypeError, "k is a float, which is no array"),
    (Q, K[0], RopeError, "axes='bshd' names 4 axes; k has 3"),
    (Q, K[:1], RopeError, "differ in batch axis 'b' .*: 2 and 1"),
    (Q, K[:, :5], RopeError, "differ in tokens .*: 9 and 5. Give k_positions"),
    (Q, K[..., :6], RopeError, "differ in head_dim .*: 8 and 6"),
    (Q[..., :7], K[..., :7], RopeError, "head_dim is 7, an odd number"),
    (Q[0, 0, 0], K[0, 0, 0], RopeError, "q has 1 axes; it needs at least two"),
    (np.float32(1), K, RopeError, "q has 0 axes; it needs at least two"),
    (np.ma.masked_array(Q), K, TypeError, "MaskedArray: its operators"),
    (Q[0, :, 0].view(np.matrix), K[0, :, 0], TypeError, "matrix: its operators"),
]


@pytest.mark.parametrize(("q", "k", "error", "message"), ARRAYS, ids=lambda a: str(type(a)))
def test_arrays(q: object, k: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        rope_xp.apply(q, k)


def test_more_axes_than_have_names() -> None:
    with pytest.raises(RopeError, match="x has 14 axes, too many to guess"):
        RoPE().rotate(np.ones((1,) * 13 + (2,)))
    assert RoPE().rotate(np.ones((1,) * 11 + (2,))).shape == (1,) * 11 + (2,)


def test_components_of_positions() -> None:
    rope = RoPE(position_axes=(0, 1, 2, 2))
    for bad in (np.zeros((2, 2, 9)), np.zeros(9), 5):
        with pytest.raises(RopeError, match="needs a leading axis of 3"):
            rope.rotate(Q, bad)
    with pytest.raises(RopeError, match=r"shape \(3, 8\); \(3, ...\) must broadcast"):
        rope.rotate(Q, np.zeros((3, 8)))
    with pytest.raises(RopeError, match=r"one number for 9 tokens"):
        rope.rotate(Q, [1, 2, 3])
    with pytest.raises(RopeError, match="leading axis of 3"):
        rope.cos_sin([1, 2], 8)


def test_libraries_do_not_mix() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    q, k = torch.ones(2, 9, 4, 8), torch.ones(2, 9, 2, 8)
    with pytest.raises(TypeError, match="q is a torch array and k a numpy array; convert"):
        rope_xp.apply(q, K)
    with pytest.raises(
        TypeError, match="the array to rotate is a torch array and positions a jax array"
    ):
        rope_xp.apply(q, k, jnp.arange(9))
    with pytest.raises(
        TypeError, match="the array to rotate is a numpy array and positions a torch array"
    ):
        rope_xp.apply(Q, K, torch.arange(9))
    with pytest.raises(TypeError, match="x is a torch array and cos a jax array"):
        rope_xp.apply_tables(q, jnp.ones((9, 4)), jnp.ones((9, 4)))
    with pytest.raises(TypeError, match=r"out\[0\] must be an array of torch like q"):
        rope_xp.apply(q, k, out=(np.zeros_like(Q), k))


def test_devices_do_not_mix() -> None:
    torch, xp = pytest.importorskip("torch"), pytest.importorskip("array_api_strict")
    q, k = torch.ones(2, 9, 4, 8), torch.ones(2, 9, 2, 8)
    with pytest.raises(RopeError, match="q is on cpu and k on meta; move one"):
        rope_xp.apply(q, k.to("meta"))
    with pytest.raises(RopeError, match="the array to rotate is on meta and positions on cpu"):
        rope_xp.apply(q.to("meta"), k.to("meta"), torch.arange(9))
    with pytest.raises(RopeError, match=r"out\[0\] is .* on meta; the result for q is .* on cpu"):
        rope_xp.apply(q, k, out=(q.to("meta"), k))
    a = xp.ones((2, 9, 4, 8), dtype=xp.float32)
    b = xp.ones((2, 9, 2, 8), dtype=xp.float32, device=xp.Device("device1"))
    with pytest.raises(RopeError, match="q is on .*CPU.* and k on .*device1"):
        rope_xp.apply(a, b)


def test_integers_on_every_backend(backend: Target) -> None:
    x = backend.make(np.ones((3, 2, 8), np.int32))
    with pytest.raises(TypeError, match="x is .* dtype int32.*; it must hold bfloat16, float16"):
        RoPE().rotate(x)
    q = backend.make(np.ones((3, 2, 8), np.float32))
    with pytest.raises(TypeError, match="positions must hold integers or real floats"):
        RoPE().rotate(q, backend.make(np.ones(3, bool)))


def test_rerotation_onto_other_pairs() -> None:
    rope = RoPE(layout="half")
    for other in (RoPE(), RoPE(layout="half", rotary_dim=4)):
        with pytest.raises(RopeError, match="rerotate needs ropes that rotate the same pairs"):
            rope.rerotate(Q, None, None, to=other)
    assert rope.rerotate(Q, None, None, to=RoPE(layout="interleaved_to_half")).shape == Q.shape
    with pytest.raises(TypeError, match="to must be a rope_xp.RoPE"):
        rope.rerotate(Q, None, None, to="half")


def test_tables() -> None:
    cos = np.ones((9, 4), np.float32)
    cases = [
        ((cos, cos[:, :3]), RopeError, r"cos has shape \(9, 4\) and sin \(9, 3\)"),
        ((cos[:8], cos[:8]), RopeError, r"\(8,\); it must broadcast to .* = \(2, 9\)"),
        ((cos[0], cos[0]), RopeError, "needs two axes at least"),
        (
            (np.ones((9, 8)),) * 2,
            RopeError,
            r"need one column a pair: cos\[..., ::2\] of .* or cos",
        ),
        ((np.ones((9, 5)),) * 2, RopeError, "room for 1 to 4"),
        ((np.ones((9, 0)),) * 2, RopeError, "room for 1 to 4"),
        ((cos.astype(int), cos), TypeError, "cos is .* dtype int64"),
        ((cos.tolist(), cos), TypeError, "cos is a list"),
    ]
    for tables, error, message in cases:
        with pytest.raises(error, match=message):
            rope_xp.apply_tables(Q, *tables)
    with pytest.raises(RopeError, match="does not lie within head_dim=8"):
        rope_xp.apply_tables(Q, cos[:, :3], cos[:, :3], rotary_offset=3)
    with pytest.raises(RopeError, match="layout must be one of"):
        rope_xp.apply_tables(Q, cos, cos, layout="neox")
    with pytest.raises(TypeError, match="rotary_offset must be an integer"):
        rope_xp.apply_tables(Q, cos, cos, rotary_offset=1.0)


def test_weights() -> None:
    w = np.ones((24, 5))
    for arguments, message in [
        ((w, 5, "half"), r"w has shape \(24, 5\); its first axis must be num_heads \* head_dim"),
        ((w, 8, "half"), "head_dim even"),
        ((w, 0, "half"), "num_heads must be positive"),
        ((w, 3, "interleaved_to_half"), "to must be 'interleaved' or 'half'"),
        ((np.ones(()), 1, "half"), r"w has shape \(\)"),
    ]:
        with pytest.raises(RopeError, match=message):
            rope_xp.permute_weights(arguments[0], arguments[1], to=arguments[2])
    with pytest.raises(TypeError, match="num_heads must be an integer; got 2.0"):
        rope_xp.permute_weights(w, 2.0, to="half")
    with pytest.raises(TypeError, match="w is a list"):
        rope_xp.permute_weights([[1.0]], 1, to="half")


def test_head_dim_and_length() -> None:
    rope = RoPE()
    for function in (rope.frequencies, rope.wavelengths, lambda d: rope.cos_sin([1], d)):
        with pytest.raises(TypeError, match="head_dim must be an integer; got 8.0"):
            function(8.0)
        with pytest.raises(RopeError, match="head_dim must be positive"):
            function(-8)
        with pytest.raises(RopeError, match="head_dim is 7, an odd number"):
            function(7)
    with pytest.raises(RopeError, match="n must be positive"):
        rope.for_length(0)
    with pytest.raises(TypeError, match="n must be an integer"):
        rope.for_length(1e3)
    with pytest.raises(TypeError, match="xp must be an array API namespace"):
        rope.cos_sin([1], 8, xp="numpy")


def test_hierarchy() -> None:
    assert issubclass(RopeError, ValueError)
    assert issubclass(RopeConfigError, RopeError)
    assert issubclass(rope_xp.MissingBackendError, ImportError)
