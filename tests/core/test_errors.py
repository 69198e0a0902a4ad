"""What is refused, of any backend, with which message: RopeErrors and TypeErrors."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import numpy as np
import pytest
from support.rules import Times

import rope_xp
from rope_xp import Angles, Choice, QKNorm, RoPE, RopeConfigError, RopeError, positions
from rope_xp.scaling import (
    NTK,
    Axial,
    DynamicNTK,
    Linear,
    Proportional,
    RIFLEx,
    Scaling,
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


class Constant(Scaling):
    def __init__(self, frequencies: object, factor: float = 1.0) -> None:
        self.constant, self.attention_factor = frequencies, factor

    def frequencies(self, base: float, rotary_dim: int) -> object:
        return self.constant


@dataclass(frozen=True)
class Noted(Constant):
    """A scaling with a note, which may or may not be a part of its hash."""

    attention_factor = 1.0
    note: object = None
    aside: object = field(default=None, compare=False)


HALF, THREE = RoPE(layout="half"), RoPE(position_axes=(0, 1, 2, 2))
TWO = RoPE(position_axes=(0, 1, 0, 1))
ANGLES = RoPE().at(range(9), like=Q)
COS, W = ANGLES.cos, np.ones(8, np.float32)
CHOICE, SLICE = (RoPE(rotary_dim=8), RoPE(rotary_dim=8, base=5e5)), RoPE(rotary_dim=4)
apply, axial, tables = rope_xp.apply, RoPE.axial, rope_xp.apply_tables
apply_angles = rope_xp.apply_angles
permute, at, choose = rope_xp.permute_weights, RoPE().at, Choice
NONSENSE = [Constant(f) for f in ([1.0, 0.1], [1.0, 0.1, NAN, 0.0], [[1.0] * 4])]
UNHASHABLE = type("Unhashable", (Linear,), {"__hash__": None})(2.0)


DYNAMIC = RoPE(scaling=DynamicNTK(2.0, 64))
FORGETFUL = RoPE(scaling=type("Forgetful", (Times,), {"for_length": lambda *_: None})(2.0))
HEADS = [np.ones((2, 9, 3, 4))] * 2


def normalize(q_weight: np.ndarray, k_weight: np.ndarray, rope: RoPE = HALF) -> Any:
    return rope.apply(Q, K, norm=QKNorm(q_weight, k_weight), out=(Q, K))


def table(**options: Any) -> Any:
    return RoPE().table(**({"length": 8, "head_dim": 8, "form": "vllm"} | options))


Row = tuple[str, Callable[[], Any]]
VALUES: list[Row] = [
    # Arrays.
    ("axes='bshd' names 4 axes; k has 3", lambda: apply(Q, K[0])),
    ("differ in batch axis 'b' .*: 2 and 1", lambda: apply(Q, K[:1])),
    (
        "differ in tokens .*: 9 and 5. If heads come before tokens, .* pass axes='bhsd'. If k re",
        lambda: apply(Q, K[:, :5]),
    ),
    ("differ in head_dim .*: 8 and 6", lambda: apply(Q, K[..., :6])),
    ("head_dim is 7, an odd number", lambda: apply(Q[..., :7], K[..., :7])),
    ("q has 1 axes; it needs at least two", lambda: apply(Q[0, 0, 0], K[0, 0, 0])),
    ("x has 14 axes, too many to guess", lambda: HALF.rotate(np.ones((1,) * 13 + (2,)))),
    # Norms.
    ("eps must be positive and finite; got -1", lambda: RoPE().rotate(Q, norm=(W, -1.0), out=Q)),
    (r"eps must be at least 2\*\*-126, .*; got 5e-324", lambda: QKNorm(eps=5e-324)),
    ("offset must be at least 0 and finite; got -1", lambda: QKNorm(offset=-1.0)),
    (r"q_weight has shape \(9,\); it .* \(8,\) or \(4, 8\)", lambda: normalize(np.ones(9), W)),
    ("norm.k_weight overlaps|overlaps norm.k_weight", lambda: normalize(W, K[0, 0, 0])),
    ("must normalize the same components of q and k", lambda: normalize(W, W[:4], SLICE)),
    # Components of positions.
    ("needs a leading axis of 3", lambda: THREE.rotate(Q, 5)),
    (r"shape \(3, 8\); \(3, ...\) must broadcast", lambda: THREE.rotate(Q, np.zeros((3, 8)))),
    (r"Pass moveaxis\(positions, -1, 0\)", lambda: THREE.rotate(Q, np.zeros((2, 9, 3)))),
    (r"Pass moveaxis\(positions, -1, 0\)", lambda: TWO.rotate(Q, np.zeros((2, 9, 2)))),
    (r"\(batch, tokens, head_dim\) are axes='bsd'", lambda: HALF.rotate(Q[:, :, 0], [range(9)])),
    (r"Pass those of the 9 tokens, .*\[..., :9\]", lambda: RoPE().rotate(Q, np.arange(12))),
    (r"Pass positions\[..., None\]", lambda: RoPE().rotate(Q[:, :1], np.arange(2))),
    # Rerotation.
    ("needs ropes that rotate the same pairs", lambda: HALF.rerotate(Q, None, None, to=RoPE())),
    # Tables of the caller.
    (r"cos has shape \(9, 4\) and sin \(9, 3\)", lambda: tables(Q, COS, COS[:, :3])),
    ("needs two axes at least", lambda: tables(Q, COS[0], COS[0])),
    ("cos has 3 heads, x 4; pass cos with the heads of k", lambda: tables(Q, *HEADS)),
    (r"one column per pair: cos\[..., ::2\] of .* or cos", lambda: tables(Q, Q[0, 0], Q[0, 0])),
    ("has 1 to 4 pairs", lambda: tables(Q, *[np.ones((9, 0))] * 2)),
    (OUTSIDE, lambda: tables(Q, COS[:, :3], COS[:, :3], rotary_offset=3)),
    ("layout must be one of .*; got 'halves'", lambda: tables(Q, COS, COS, layout="halves")),
    (r"layout must be one of .*; got \['half'", lambda: tables(Q, COS, COS, layout=["half"])),
    # Angles.
    (r"cos has 4 columns.* rotates 16 components, 8 p", lambda: ANGLES.rotate(np.ones((9, 16)))),
    (r"cos\[..., 0\] has shape \(9,\); it must broad", lambda: ANGLES.apply(Q[:, :5], K[:, :5])),
    (r"cos has a single row for 9 tokens; compute", lambda: at(70_000, like=Q).apply(Q, K)),
    ("has 3 entries", lambda: Angles(COS, COS, RoPE(position_axes=(0, 1, 1))).apply(Q, K)),
    ("positions must lie between", lambda: at([1 << 31], like=Q)),
    ("like is a number; pass an array such as q", lambda: at([1], like=np.float32(3))),
    ("head_dim is 7, an odd number", lambda: at([1], like=Q, head_dim=7)),
    ("head_dim must be positive", lambda: at([1], like=Q, head_dim=0)),
    (OUTSIDE, lambda: RoPE(rotary_dim=16).at([1], like=Q)),
    ("must be equal", lambda: RoPE().with_tables(COS, COS[:3])),
    (r"use a RoPE with rotary_dim=8", lambda: SLICE.with_tables(COS, COS)),
    ("pass one column per pair", lambda: RoPE().with_tables(*[np.ones((9, 8))] * 2).rotate(Q)),
    # Choices.
    ("which must hold indices into ropes, from 0 to 1", lambda: choose(CHOICE, [0, 3])),
    (r"must rotate the same pairs.*ropes\[1\]", lambda: choose((CHOICE[0], RoPE()), [0, 1])),
    ("must broadcast to", lambda: choose(CHOICE, [0, 1, 0]).at([1], like=Q).apply(Q, K)),
    # Weights.
    (r"\(24, 5\); its first axis must be num_h", lambda: permute(np.ones((24, 5)), 5, to="half")),
    ("num_heads must be positive", lambda: permute(np.ones((24, 5)), 0, to="half")),
    ("to must be 'interleaved' or 'half'", lambda: permute(COS, 1, to="interleaved_to_half")),
    # Lengths and widths.
    ("head_dim must be positive", lambda: RoPE().frequencies(-8)),
    ("head_dim is 7, an odd number", lambda: RoPE().cos_sin([1], 7)),
    # Scalings.
    ("depend on the length of the context; fix it first", lambda: DYNAMIC.table(8, 8, form="onnx")),
    (r"Forgetful.for_length\(9\) returned None; it must", lambda: FORGETFUL.for_length(9)),
    ("Linear.factor must be positive and finite; got inf", lambda: Linear(math.inf)),
    *(("must return 4 finite frequ", lambda f=f: RoPE(scaling=f).rotate(Q)) for f in NONSENSE),
    ("Constant.effective_att", lambda: RoPE(scaling=Constant([1.0] * 4, 0.0))),
    ("softmax_scale must be", lambda: YaRN(1e17, 512, mscale=1.0, mscale_all_dim=1e300)),
    ("RIFLEx.k must be positive", lambda: RIFLEx(0, 4)),
    ("RIFLEx.share must be positive", lambda: RIFLEx(1, 4, share=0)),
    ("RIFLEx.axis must be from 0 to 1", lambda: RIFLEx(1, 4, Axial(2), axis=2)),
    ("'strided' has one", lambda: RIFLEx(1, 4, Axial(2, "strided"))),
    ("RIFLEx.k is 5, but axis", lambda: RIFLEx(5, 4, Axial(2)).frequencies(1e4, 16)),
    ("2 components.*is None", lambda: RoPE(scaling=RIFLEx(1, 42, scaling=Axial()))),
    # Sections of axes.
    ("must be even", lambda: axial((3, 5))),
    ("must be positive", lambda: axial((0, 4))),
    ("sections is empty", lambda: axial(())),
    ("bases must be 2 numbers", lambda: axial((2, 4), bases=(1.0,))),
    ("order must be one of", lambda: axial((2, 4), order="rows")),
    ("axes=4 but sections", lambda: Axial(4, sections=(2, 2))),
    ("sum to 6", lambda: Axial(sections=(2, 4)).frequencies(1e4, 8)),
    # Positions of patches.
    ("start must be one number or 3", lambda: positions.video(1, 2, 3, start=(0, 1))),
    ("step must hold finite numbers", lambda: positions.grid(1, 2, step=("1", 2))),
    ("height must be positive", lambda: positions.grid(0, 2, start=1)),
    ("along holds component 2", lambda: positions.text(1, 2, along=(2,))),
    ("tokens must not be negative", lambda: positions.text(-1, 2)),
    # Tables for other engines.
    ("form must be one of 'vllm', .*'onnx'; got 'meta'", lambda: table(form="meta")),
    ("length must be", lambda: table(length=0)),
    ("dtype must be one of float32, .* for this form; got", lambda: table(dtype=np.int32)),
    ("must be one of complex64", lambda: table(form="complex", dtype=np.float32)),
]
TYPES: list[Row] = [
    (r"q is a numpy array of shape .* dtype int64; convert it to", lambda: apply(Q.astype(int), K)),
    ("q is a list; expected an array of numpy, torch", lambda: apply(Q.tolist(), K)),
    ("k is None; expected an array", lambda: apply(Q, None)),
    (r"MaskedArray: its operators .*; pass filled\(0\)", lambda: apply(np.ma.masked_array(Q), K)),
    ("matrix: its operators", lambda: apply(Q[0, :, 0].view(np.matrix), K[0, :, 0])),
    ("eps must be a number; got '1'", lambda: RoPE().rotate(Q, norm=(W, "1"))),
    ("offset must be a number; got array", lambda: QKNorm(offset=W)),
    ("round_between must be", lambda: QKNorm(round_between=1)),
    ("k_weight is a numpy array .* int64", lambda: normalize(W, np.ones(8, np.int64))),
    ("norm must be a rope_xp.QKNorm; got dict", lambda: apply(Q, K, norm={}, out=(Q, K))),
    (r"got an array, ndarray of shape \(9, 4\).*apply_tables", lambda: apply(Q, K, COS, COS)),
    ("to must be a rope_xp.RoPE", lambda: HALF.rerotate(Q, None, None, to="half")),
    ("cos is .* dtype int64", lambda: tables(Q, COS.astype(int), COS)),
    ("rotary_offset must be an integer", lambda: tables(Q, COS, COS, rotary_offset=True)),
    ("like is a numpy array.*int64", lambda: at([1], like=np.ones(8, int))),
    ("head_dim must be an integer", lambda: at([1], like=Q, head_dim=True)),
    ("positions must hold integers", lambda: at(None, like=Q)),
    (r"ropes\[0\] must be a rope_xp.RoPE", lambda: choose(("half",), [0])),
    ("tuple of one RoPE or more", lambda: choose([*CHOICE], [0])),
    ("which must hold integers; got float64", lambda: choose(CHOICE, [0.5])),
    ("num_heads must be an integer; got 2.0", lambda: permute(COS, 2.0, to="half")),
    ("head_dim must be an integer; got 8.0", lambda: RoPE().wavelengths(8.0)),
    ("n must be an integer", lambda: RoPE().for_length(1e3)),
    ("xp must be an array API namespace", lambda: RoPE().cos_sin([1], 8, xp="numpy")),
    *(
        ("scaling must be hashable.*: unhashable type: '", lambda n=n: RoPE(scaling=Noted(note=n)))
        for n in (np.ones(2), (1, (2, {})), Noted(note=[1.0]))
    ),
    ("scaling must be hashable", lambda: RoPE(scaling=UNHASHABLE)),
    ("RIFLEx.scaling must be", lambda: RIFLEx(1, 4, "axial")),
    (r"sections\[0\] must be an integer", lambda: axial((2.0, 4))),
    ("sections must be a tuple", lambda: axial(64)),
    ("computes rotary_dim", lambda: axial((2, 4), rotary_dim=6)),
]


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [*((RopeError, *row) for row in VALUES), *((TypeError, *row) for row in TYPES)],
)
def test_public_functions_refuse_bad_arguments_by_name(error, message, call):
    with pytest.raises(error, match=message):
        call()
    assert (Q == 1).all()
    assert (K == 1).all()


def test_public_functions_refuse_arrays_of_two_libraries_or_devices():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    xp = pytest.importorskip("array_api_strict")
    q, k, on_meta = torch.ones(Q.shape), torch.ones(K.shape), torch.ones(K.shape, device="meta")
    a, b = (xp.ones((3, 2, 8), device=xp.Device(name)) for name in ("CPU_DEVICE", "device1"))
    cos, which = jnp.ones((9, 4)), torch.tensor([0, 1])
    pairs = "the array to rotate is a {} array and positions a {} array"
    for error, message, call in [
        (TypeError, "q is a torch array and k a numpy array; convert", lambda: apply(q, K)),
        (TypeError, pairs.format("torch", "jax"), lambda: apply(q, k, jnp.arange(9))),
        (TypeError, pairs.format("numpy", "torch"), lambda: apply(Q, K, torch.arange(9))),
        (TypeError, "x is a torch array and cos a jax array", lambda: tables(q, cos, cos)),
        (TypeError, r"out\[0\] must be an array of torch like q", lambda: apply(q, k, out=(Q, k))),
        (TypeError, "q is a numpy .* cos a torch", lambda: at(range(9), like=k).apply(Q, K)),
        (TypeError, "numpy array and angles a torch", lambda: apply_angles(Q, K, q[0, :, 0])),
        (TypeError, "numpy array and which a torch", lambda: choose(CHOICE, which).at([1], like=Q)),
        (RopeError, "q is on cpu and k on meta; move one", lambda: apply(q, on_meta)),
        (RopeError, "is on meta and positions on cpu", lambda: HALF.rotate(on_meta, which)),
        (RopeError, r"out\[1\] is .* meta; .* k is .* cpu", lambda: apply(q, k, out=(q, on_meta))),
        (RopeError, "q is on .*CPU.* and k on .*device1", lambda: apply(a, b)),
    ]:
        with pytest.raises(error, match=message):
            call()


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
        ANGLES.cos = COS


# --- scalings ------------------------------------------------------------------------------------

EXTREME = [
    (RoPE(scaling=NTK(1e300)), "base that NTK computes from base = 10000.0 .*; got inf"),
    (RoPE(scaling=DynamicNTK(1e300, 1, length=10**300)), "DynamicNTK computes .* got inf"),
    (RoPE(base=1e-300, scaling=Linear(1e-320)), "must return 4 finite frequencies"),
    (RoPE(scaling=Linear(1e-300)), "its fastest frequency is 1e\\+300, beyond float32"),
    (RoPE(scaling=YaRN(2.0, 1, beta_slow=1e-320)), "wavelength of pairs that turn 1e-320 times"),
    (RoPE(scaling=YaRN(2.0, 512, attention_factor=1e300)), "its attention_factor is 1e\\+300"),
    (RoPE(scaling=YaRN(2.0, 512, attention_factor=1e-300)), "1 / attention_factor is 1e\\+300"),
]


@pytest.mark.parametrize(("rope", "message"), EXTREME, ids=lambda a: str(a)[:60])
def test_rotate_refuses_scalings_beyond_float32_on_first_use(rope, message):
    for x in (Q, Q.astype(float)):
        with pytest.raises(RopeError, match=message):
            rope.rotate(x)


@pytest.mark.parametrize("rule", [NTK(2.0), YaRN(2.0, 512), Axial(), Proportional()])
def test_frequencies_refuse_an_impossible_base_or_rotary_dim(rule):
    for base in (0, NAN, 10**400):
        for call in (rule.frequencies, inverse_frequencies):
            with pytest.raises(RopeError, match="base.* must be positive and finite"):
                call(base, 8)
    for rotary_dim in (0, 3):
        with pytest.raises(RopeError, match=f"rotary_dim must be .*; got {rotary_dim}"):
            inverse_frequencies(1e4, rotary_dim)


@pytest.mark.parametrize("note", [Constant, math.inf, len, frozenset((1, 2))])
def test_rope_takes_scalings_with_hashable_fields(note):
    scaling = Noted(note=note, aside=[1.0])
    assert RoPE(scaling=scaling).scaling is scaling
