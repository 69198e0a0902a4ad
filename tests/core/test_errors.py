"""Which options are refused, by functions that write nothing."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeConfigError, RopeError
from rope_xp.scaling import (
    NTK,
    Axial,
    Linear,
    Proportional,
    YaRN,
    inverse_frequencies,
)

NAN = float("nan")
Q = np.ones((2, 9, 4, 8), np.float32)
K = np.ones((2, 9, 2, 8), np.float32)
OUTSIDE = "does not fit in head_dim=8"
PAIRS = "2 entries; 8 rotated components have 4 pairs"
# (options of apply, error, message)
CALLS = [
    ({"rope": RoPE(), "base": 5e5}, TypeError, "both rope and its fields .base."),
    ({"rope": {"base": 5e5}}, TypeError, "rope must be a rope_xp.RoPE; got {'base'"),
    ({"rotary_dim": 10}, RopeError, "rotary_dim=10 components from rotary_offset=0"),
    ({"rotary_dim": 4, "rotary_offset": 5}, RopeError, OUTSIDE),
    ({"rotary_dim": 4, "rotary_offset": -9}, RopeError, OUTSIDE),
    ({"position_axes": (0, 1)}, RopeError, PAIRS),
    ({"axes": "bshx"}, RopeError, "has no head_dim axis 'd'"),
    ({"axes": "bhxd"}, RopeError, "has no tokens axis 's'"),
    ({"axes": "bssd"}, RopeError, "names an axis twice"),
    ({"axes": "bsdh"}, RopeError, "does not end in head_dim 'd'"),
    ({"axes": "BSHD"}, RopeError, "not lower-case letters"),
    ({"axes": list("bshd")}, TypeError, "axes must be a string"),
    ({"axes": "shd"}, RopeError, "axes='shd' names 3 axes; q has 4"),
    ({"axes": "bhsd"}, RopeError, "differ in tokens .axes='bhsd'.: 4 and 2. If k really has other"),
    ({"positions": np.arange(8)}, RopeError, r"shape \(8,\); it must broadcast to .* = \(2, 9\)"),
    ({"positions": np.zeros((1, 2, 9))}, RopeError, "it must broadcast to"),
    ({"positions": np.zeros(9, object)}, TypeError, "positions must hold .*; got dtype object"),
    ({"positions": RoPE()}, TypeError, "positions must hold integers .*; got RoPE"),
    ({"positions": [True] * 9}, TypeError, "positions must hold integers or real .* bool"),
    ({"positions": [1 << 70] * 9}, TypeError, "positions must hold"),
    ({"positions": [[1, 2], [3]]}, RopeError, "positions is a ragged list"),
    ({"k_positions": np.arange(3)}, RopeError, r"k_positions has shape \(3,\)"),
]
# (fields, error, message), refused by RoPE and by apply
FIELDS = [
    ({"base": 0}, RopeError, "base must be positive and finite; got 0"),
    ({"base": NAN}, RopeError, "base must be positive and finite; got nan"),
    *(({"base": v}, TypeError, "base must be a") for v in (True, np.array(4.0), "1e4", 4j, None)),
    ({"layout": "neox"}, RopeError, "layout must be one of .*got 'neox'"),
    ({"rotary_dim": 7}, RopeError, "rotary_dim must be even and positive"),
    ({"rotary_dim": 4.0}, TypeError, "rotary_dim must be an integer; got 4.0 .float."),
    ({"rotary_offset": 0.5}, TypeError, "rotary_offset must be an integer"),
    *(({"scaling": v}, TypeError, "scaling must be an instance such") for v in ("yarn", Linear)),
    ({"scaling": Axial()}, RopeError, "2 components.*position_axes is None.*RoPE.axial"),
    ({"position_axes": [0, 1]}, TypeError, "position_axes must be a tuple"),
    ({"position_axes": ()}, RopeError, "position_axes must be integers >= 0"),
    ({"position_axes": (0, -1)}, RopeError, "position_axes must be integers >= 0"),
    ({"position_axes": (0, 1), "rotary_dim": 8}, RopeError, PAIRS),
]


@pytest.mark.parametrize(("options", "error", "message"), CALLS + FIELDS, ids=lambda a: str(a)[:40])
def test_apply_and_explain_refuse_bad_options_and_write_nothing(options, error, message):
    out = (np.zeros_like(Q), np.zeros_like(K))
    with pytest.raises(error, match=message):
        rope_xp.apply(Q, K, out=out, **options)
    assert not out[0].any()
    assert not out[1].any()
    with pytest.raises(error, match=message):
        rope_xp.explain(Q, K, **options)
    if (options, error, message) in FIELDS:
        with pytest.raises(error, match=message):
            RoPE(**options)


def test_rotate_refuses_integers_and_bool_positions_on_every_backend(backend):
    x = backend.make(np.ones((3, 2, 8), np.int32))
    with pytest.raises(TypeError, match="x is .* dtype int32.*; convert it to one of bfloat16"):
        RoPE().rotate(x)
    q = backend.make(np.ones((3, 2, 8), np.float32))
    with pytest.raises(TypeError, match="positions must hold integers or real floats"):
        RoPE().rotate(q, backend.make(np.ones(3, bool)))


def test_errors_derive_from_those_of_python():
    assert issubclass(RopeError, ValueError)
    assert issubclass(RopeConfigError, RopeError)
    assert issubclass(rope_xp.MissingBackendError, ImportError)
    with pytest.raises(FrozenInstanceError):
        RoPE().at([1], like=Q).cos = Q


@pytest.mark.parametrize("rule", [NTK(2.0), YaRN(2.0, 512), Axial(), Proportional()])
def test_frequencies_refuse_an_impossible_base_or_rotary_dim(rule):
    for base in (0, NAN, 10**400):
        for call in (rule.frequencies, inverse_frequencies):
            with pytest.raises(RopeError, match="base.* must be positive and finite"):
                call(base, 8)
    for rotary_dim in (0, 3):
        with pytest.raises(RopeError, match=f"rotary_dim must be .*; got {rotary_dim}"):
            inverse_frequencies(1e4, rotary_dim)
