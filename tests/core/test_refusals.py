"""What public functions refuse, one row for each message: RopeErrors, then TypeErrors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.rules import Times

import rope_xp
from rope_xp import Angles, Choice, QKNorm, RoPE, RopeError, positions
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
)

NAN = float("nan")
Q = np.ones((2, 9, 4, 8), np.float32)
K = np.ones((2, 9, 2, 8), np.float32)
OUTSIDE = "does not fit in head_dim=8"


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


ROW, ANGLE, STEPS, STATE = np.ones(2), np.ones((9, 2)), np.ones((6, 2), "f4"), np.zeros((1, 2), int)
SHORT, FEW = (1.0,) * 32, LongRoPE((1.0,) * 32, (1.0, 1.0), 512, 4.0, length=513)
add_up = rope_xp.cumulative_angles
DYNAMIC = RoPE(scaling=DynamicNTK(2.0, 64))
FORGETFUL = RoPE(scaling=type("Forgetful", (Times,), {"for_length": lambda *_: None})(2.0))
HEADS = [np.ones((2, 9, 3, 4))] * 2


def normalize(q_weight: np.ndarray, k_weight: np.ndarray, rope: RoPE = HALF) -> Any:
    return rope.apply(Q, K, norm=QKNorm(q_weight, k_weight), out=(Q, K))


def rotate(scaling: Scaling, x: np.ndarray = Q, **fields: float) -> Any:
    return RoPE(scaling=scaling, **fields).rotate(x)


def table(**options: Any) -> Any:
    return RoPE().table(**({"length": 8, "head_dim": 8, "form": "vllm"} | options))


def learn(frequencies: Any, positions: Any = None, q: Any = Q, k: Any = K, **options: Any) -> Any:
    options = {"layout": "half", "out": (q, k)} | options
    return rope_xp.apply_frequencies(q, k, positions, frequencies, **options)


def turn(angles: Any = ANGLE, q: Any = Q, k: Any = K, **options: Any) -> Any:
    return rope_xp.apply_angles(q, k, angles, **{"out": (q, k)} | options)


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
    # Frequencies.
    (r"\(r/2,\), \(heads, r/2\)", lambda: learn(np.ones((1, 1, 1, 2)))),
    (r"frequencies has shape \(0,\)", lambda: learn(np.ones(0))),
    ("frequencies must be finite", lambda: learn(np.array([1.0, np.inf]))),
    (r"below 1.04858e\+06", lambda: learn(np.array([1.0, 2e6]))),
    ("a query must turn like its key", lambda: learn(np.ones((4, 2)))),
    ("needs a leading axis of 2", lambda: learn(np.ones((2, 1, 2)), range(9))),
    ("positions must lie between", lambda: learn(ROW, [1 << 31] * 9)),
    ("positions .* must broadcast to", lambda: learn(ROW, [1, 2])),
    ("has no heads axis", lambda: learn(np.ones((2, 2)), q=Q[:, :, 0], k=Q[:, :, 0], axes="bsd")),
    # Angles of the caller.
    ("angles has 4 heads, q 4 and k 2; pass angles with", lambda: turn(np.ones((2, 9, 4, 2)))),
    ("k_angles has 4 heads, k 2; pass k", lambda: turn(k_angles=np.ones((2, 9, 4, 2)))),
    (r"pass all axes: \(batch..., tokens, heads", lambda: turn(np.ones((9, 2, 2)))),
    (r"angles\[..., 0, 0\] has shape \(2, 8\)", lambda: turn(np.ones((2, 8, 2, 2)))),
    (r"angles has shape \(2,\); it needs two axes", lambda: turn(ROW)),
    (r"k_angles\[..., 0\] has shape \(2,\)", lambda: turn(k_angles=np.ones((2, 2)))),
    ("angles has 8 columns, one for each", lambda: turn(np.ones((9, 8)))),
    ("angles has 2 columns and k_angles 3", lambda: turn(k_angles=np.ones((9, 3)))),
    ("angles has 2 heads, q 4 and k 4", lambda: turn(np.ones((2, 9, 2, 2)), k=Q)),
    ("differ in batch axis", lambda: turn(q=Q[:1], k_angles=ANGLE)),
    (r"out\[0\] overlaps k", lambda: turn(k=Q, out=(Q, Q.copy()))),
    (OUTSIDE, lambda: turn(rotary_offset=6)),
    ("layout must be one of", lambda: turn(layout="neox")),
    # Cumulative angles.
    (r"axis = 2 is no axis of tokens .* \(6, 2\)", lambda: add_up(STEPS, 2)),
    (r"axis = 0 is no axis of tokens .* \(0, 2\)", lambda: add_up(STEPS[:0], 0)),
    (r"start is .* int64 of shape \(1, 2\)", lambda: add_up(STEPS, 0, start=STEPS[:1])),
    (r"start is .* shape \(2,\) .* pass the state", lambda: add_up(STEPS, 0, start=STATE[0])),
    (r"of shape \(2, 2\)", lambda: add_up(STEPS, 0, start=STATE, cu_seqlens=[0, 2, 6])),
    (
        r"start is .* shape \(1, 2, 1\)",
        lambda: add_up(np.ones((3, 2, 9)), 0, start=STATE[..., None]),
    ),
    ("cu_seqlens ends with 7, and steps has 6", lambda: add_up(STEPS, 0, cu_seqlens=[0, 7])),
    ("cu_seqlens must start with 0", lambda: add_up(STEPS, 0, cu_seqlens=[1, 6])),
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
    ("NTK needs two pairs", lambda: NTK(2.0).frequencies(1e4, 2)),
    ("DynamicNTK.max_position_embeddings must be positive", lambda: DynamicNTK(2.0, 0)),
    ("YaRN.beta_fast must not be below beta_slow = 2.0; got 1.0", lambda: YaRN(2.0, 512, 1.0, 2.0)),
    ("YaRN.beta_slow must be positive", lambda: YaRN(2.0, 512, 32.0, 0.0)),
    ("YaRN.attention_factor must be positive", lambda: YaRN(2.0, 512, attention_factor=0.0)),
    ("YaRN.mscale must be at least 0", lambda: YaRN(2.0, 512, mscale=-1.0)),
    (r"LongRoPE.short_factor\[1\] must be positive", lambda: LongRoPE((1.0, 0.0), (1.0, 1.0), 512)),
    ("LongRoPE needs factor, max_position_embeddings", lambda: LongRoPE(SHORT, SHORT, 512)),
    ("LongRoPE.long_factor is empty", lambda: LongRoPE(SHORT, (), 512, 4.0)),
    ("must exceed 1; got 1", lambda: LongRoPE(SHORT, SHORT, 1, 4.0)),
    ("LongRoPE.long_factor has 2 entries; .* have 32 pairs", lambda: FEW.frequencies(1e4, 64)),
    ("Llama3.high_freq_factor must not be below low_freq", lambda: Llama3(8.0, 4.0, 3.9, 8192)),
    ("Axial.axes = 2 does not divide 3", lambda: Axial(2).frequencies(1e4, 6)),
    ("Proportional.partial_rotary_factor must be above 0", lambda: Proportional(1.5)),
    ("RIFLEx.k must be positive", lambda: RIFLEx(0, 4)),
    ("RIFLEx.share must be positive", lambda: RIFLEx(1, 4, share=0)),
    ("RIFLEx.axis must be from 0 to 1", lambda: RIFLEx(1, 4, Axial(2), axis=2)),
    ("'strided' has one", lambda: RIFLEx(1, 4, Axial(2, "strided"))),
    ("RIFLEx.k is 5, but axis", lambda: RIFLEx(5, 4, Axial(2)).frequencies(1e4, 16)),
    ("2 components.*is None", lambda: RoPE(scaling=RIFLEx(1, 42, scaling=Axial()))),
    # Scalings beyond float32, on first use.
    ("base that NTK computes from base = 10000.0 .*; got inf", lambda: rotate(NTK(1e300))),
    ("DynamicNTK computes .* got inf", lambda: rotate(DynamicNTK(1e300, 1, length=10**300))),
    ("must return 4 finite frequencies", lambda: rotate(Linear(1e-320), base=1e-300)),
    (r"its fastest frequency is 1e\+300, beyond float32", lambda: rotate(Linear(1e-300))),
    (r"fastest frequency is 1e\+300", lambda: rotate(Linear(1e-300), Q.astype(np.float64))),
    ("pairs that turn 1e-320 times", lambda: rotate(YaRN(2.0, 1, beta_slow=1e-320))),
    (r"its attention_factor is 1e\+300", lambda: rotate(YaRN(2.0, 512, attention_factor=1e300))),
    (r"1 / attention_factor is 1e\+300", lambda: rotate(YaRN(2.0, 512, attention_factor=1e-300))),
    # Sections of axes.
    ("must be even", lambda: axial((3, 5))),
    ("must be positive", lambda: axial((0, 4))),
    ("sections is empty", lambda: axial(())),
    ("bases must be 2 numbers", lambda: axial((2, 4), bases=(1.0,))),
    ("order must be one of", lambda: axial((2, 4), order="rows")),
    ("takes neither sections nor bases", lambda: axial((2, 4), order="strided")),
    ("axes=4 but sections", lambda: Axial(4, sections=(2, 2))),
    ("sum to 6", lambda: Axial(sections=(2, 4)).frequencies(1e4, 8)),
    # Positions.
    ("cu_seqlens must start with 0", lambda: positions.packed([1, 3])),
    ("cu_seqlens must be a row of integers", lambda: positions.packed([[0, 3]])),
    ("total must not be negative; got -1", lambda: positions.packed([0, 3], total=-1)),
    ("total = 2 is less than cu_seqlens", lambda: positions.packed([0, 3], total=2)),
    ("total must be an integer; got 7.5", lambda: positions.packed([0, 3], total=7.5)),
    ("not decrease", lambda: positions.packed(np.array([0, 3, 2], np.uint64))),
    ("cu_seqlens is empty", lambda: positions.packed(np.array([], np.int64))),
    ("start must be an integer", lambda: positions.mrope([3], start=1.5)),
    (r"spans\[0\] must be a number of tokens or", lambda: positions.mrope([(1, 2)])),
    ("needs xp, the library", lambda: positions.grid(2, 3, device="cuda")),
    ("lengths must be a row of integers", lambda: positions.offsets([[3]])),
    ("mask must be booleans or integers, .*; got float", lambda: positions.from_mask([0.5])),
    ("got 0 to 2; from_segments takes", lambda: positions.from_mask([1, 1, 2, 0])),
    ("segments must be .* positive; got -1", lambda: positions.from_segments([-1, 1])),
    ("segments must be integers, .*; got float", lambda: positions.from_segments([1.0])),
    ("new_tokens must be positive", lambda: positions.offsets([3], 0)),
    ("frames must be positive", lambda: positions.video(-1, 3, 3)),
    (r"spans\[1\] must be positive", lambda: positions.mrope([3, 0])),
    ("interval must be positive", lambda: positions.mrope([3], interval=0.0)),
    (r"tokens = 9 must be a multiple of 2 \* shards = 4", lambda: positions.zigzag(9, 2)),
    ("shards must be positive", lambda: positions.zigzag(8, 0)),
    ("zigzag needs tokens", lambda: positions.zigzag(shards=2)),
    (r"of 2 \* shards = 4 tokens", lambda: positions.zigzag(shards=2, cu_seqlens=[0, 6, 8])),
    ("must be cu_seqlens", lambda: positions.zigzag(8, 2, cu_seqlens=[0, 4])),
    ("must start with 0", lambda: positions.zigzag(shards=2, cu_seqlens=[4, 8])),
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
    ("frequencies is a list", lambda: learn([1.0, 2.0])),
    ("angles is a list", lambda: turn([[1.0, 2.0]] * 9)),
    ("k_angles is a numpy array", lambda: turn(k_angles=np.ones((9, 2), int))),
    ("norm must be a rope_xp.QKNorm", lambda: turn(norm=W)),
    ("axis must be an integer", lambda: add_up(STEPS, 0.0)),
    ("steps is a numpy array .* convert it to one of", lambda: add_up(STEPS.astype(int), 0)),
    ("steps is a list; expected an array", lambda: add_up([1.0], 0)),
    ("max_position_embeddings must be an integer", lambda: DynamicNTK(2.0, 512.0)),
    ("LongRoPE.short_factor must be a tuple", lambda: LongRoPE("12", SHORT, 512, 4.0)),
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


@pytest.mark.parametrize("note", [Constant, math.inf, len, frozenset((1, 2))])
def test_rope_takes_scalings_with_hashable_fields(note):
    scaling = Noted(note=note, aside=[1.0])
    assert RoPE(scaling=scaling).scaling is scaling
