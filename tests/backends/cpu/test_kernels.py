"""Kernels on numpy's arrays have numpy's bits, of every number and size, in memory of any kind."""

import numpy as np
import pytest
from rope_xp_backends.cpu import plan
from support.bits import same, sample
from support.targets import numpy_dtype, truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._dispatch import call_cache

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)
LAYOUTS = ("half", "interleaved", "interleaved_to_half")


# Infinity times zero is among them.
@pytest.mark.covering
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("pairs", [32, 1])  # whole vectors, and what is left beside them
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_numbers_of_16_bits(any_path, dtype, pairs, layout):
    """Each as x1 and as x2, with each of three partners, at each of three angles."""
    x1 = np.arange(1 << 16, dtype=np.uint16)
    partners = [np.roll(x1, n) for n in (1, 0x3F80, 0x8001)]
    x = np.stack([np.stack([x1, x2], -1) for x2 in partners]).reshape(3, 1, -1, pairs, 2)
    x = x.swapaxes(-1, -2) if layout == "half" else x
    x = np.repeat(x.reshape(3, 1, -1, 2 * pairs), 3, axis=1).view(numpy_dtype(dtype))
    rope, positions = RoPE(layout=layout), [0, 1, 12_345]
    same(rope.rotate(x, positions), truth(rope.rotate, x, positions))


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_slices(any_path, dtype, layout, rng):
    """Which fill whole vectors or not, aligned or not, and more tokens than a block."""
    slices = [(r, 1, r + 4) for r in (2, 6, 34, 80)] + [(64, offset, 96) for offset in (0, 2, 16)]
    for rotary_dim, offset, head_dim in slices:
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        x = sample(rng, 2, 130, 3, head_dim, dtype=dtype)
        for turn in (rope.rotate, rope.unrotate):
            expected = truth(turn, x, POSITIONS)
            same(turn(x, POSITIONS), expected)
            y = x.copy()
            turn(y, POSITIONS, out=y)
            same(y, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_angles_that_are_no_numbers(any_path, dtype):
    """Of every sign and payload: rounding must not carry a NaN over into a number."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    table = bits.view(np.float32)[:, None].repeat(32, axis=1)
    x = np.ones((3, 1, 64), numpy_dtype(dtype))
    got = rope_xp.apply_tables(x, table, table)
    assert np.isnan(got.astype(np.float64)).all()


@pytest.mark.parametrize("shape", [(4, 2, 130), (1, 2, 130), (4, 1, 130), (4, 2, 1), (130,)])
def test_two_batch_axes_and_positions_of_their_own(any_path, shape, rng):
    positions = rng.integers(0, 1 << 20, shape)
    q, k = sample(rng, 4, 2, 130, 3, 8), sample(rng, 4, 2, 130, 1, 8)
    for axes in ("xbshd", "sxhbd"):
        order = ["xbshd".index(name) for name in axes]
        views = [x.transpose(order) for x in (q, k)]
        expected = truth(rope_xp.apply, *views, positions, axes=axes)
        for got, e in zip(rope_xp.apply(*views, positions, axes=axes), expected, strict=True):
            same(got, e)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_blocks_of_tokens_where_heads_lie_apart(any_path, dtype, monkeypatch, rng):
    """Of one that holds all tokens, of some that do not, and of the least."""
    positions = rng.integers(0, 1 << 20, (2, 333))
    q, k = sample(rng, 2, 3, 333, 8, dtype=dtype), sample(rng, 2, 1, 333, 8, dtype=dtype)
    rope = RoPE(layout="interleaved_to_half")
    monkeypatch.setattr(plan, "APART_FROM_BYTES", 0)
    for held in (plan.HELD_BYTES, 10_000, 1):
        monkeypatch.setattr(plan, "HELD_BYTES", held)
        call_cache.CALLS.cache_clear()  # which hold plans
        expected = truth(rope.apply, q, k, positions, axes="bhsd")
        for got, e in zip(rope.apply(q, k, positions, axes="bhsd"), expected, strict=True):
            same(got, e)
        x = q.copy()
        rope.rotate(x, positions, axes="bhsd", out=x)
        same(x, expected[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fused_projection_in_place(any_path, layout, rng):
    qkv, rope = sample(rng, 2, 130, 3, 4, 16), RoPE(layout=layout, rotary_dim=6)
    expected, q, k = qkv.copy(), qkv[:, :, 0], qkv[:, :, 1]
    expected[:, :, 0], expected[:, :, 1] = truth(rope.apply, q.copy(), k.copy(), POSITIONS)
    rope.apply(q, k, POSITIONS, out=(q, k))
    same(qkv, expected)


class Backwards(rope_xp.scaling.Scaling):
    def frequencies(self, base, rotary_dim):
        return -100 * rope_xp.scaling.inverse_frequencies(base, rotary_dim)


# All of one component, sections, interleaved, and a section in two pieces.
AXES = [None, (0,) * 5 + (1,) * 12 + (2,) * 8, (0, 1, 2) * 8 + (0,), (0,) * 9 + (2,) * 15 + (0,)]


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])  # float32 is computed as bfloat16
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_positions_with_components_and_fractions(any_path, kind, axes, dtype, rng):
    """And with frequencies so high that a fraction of a token turns by many quarters, both ways."""
    lead = () if axes is None else (3,)
    x = sample(rng, 2, 130, 3, 50, dtype=dtype)
    for shape in ((130,), (2, 130), (2, 1)):
        positions = rng.integers(-70_000, 1 << 22, (*lead, *shape))
        if kind == "floats":
            positions = positions + rng.random(positions.shape)
        for scaling in (None, rope_xp.scaling.Linear(0.01), Backwards()):
            rope = RoPE(position_axes=axes, layout="half", scaling=scaling)
            for turn in (rope.rotate, rope.unrotate):
                same(turn(x, positions), truth(turn, x, positions))


def test_positions_out_of_range_give_nan():
    pytest.importorskip("llvmlite")
    torch = pytest.importorskip("torch")
    outside, inside = [1 << 31, -(1 << 31), -(1 << 63), 1 << 62], [(1 << 31) - 1, 0, -5, 7]
    rotate = torch.compile(RoPE().rotate, backend="eager", fullgraph=True)  # reads no positions
    with rope_xp.use_path("llvm"):
        got = rotate(torch.ones(8, 2, 8), torch.tensor([outside, inside]).T.reshape(8))
    assert got[::2].isnan().all()
    same(got[1::2].numpy(), truth(RoPE().rotate, np.ones((4, 2, 8), np.float32), inside))


@pytest.mark.parametrize("path", ["portable", "llvm"])
def test_fractions_of_frequencies_beyond_the_bound_give_nan_when_compiled(path):
    """Other calls raise."""
    torch = pytest.importorskip("torch")
    rope, x = RoPE(layout="half", base=1e-5), torch.ones(3, 1, 8)
    assert rope.frequencies(8)[-2] < 4096 < rope.frequencies(8)[-1]
    positions = torch.tensor([0.5, 0.25, 3.75])
    with rope_xp.use_path(path):
        y = torch.compile(rope.rotate, backend="eager", fullgraph=True)(x, positions)
    is_last = torch.arange(8) % 4 == 3
    assert y[..., is_last].isnan().all()
    assert y[..., ~is_last].isfinite().all()
    with pytest.raises(RopeError, match="positions has fractions"):
        rope.rotate(x, positions)


VIEWS = {
    "heads first": ("bhsd", lambda x: x.transpose(0, 2, 1, 3)),
    "heads first in memory": ("bshd", lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2)),
    "tokens first": ("sbhd", lambda x: x.swapaxes(0, 1)),
    "part of a projection": ("bshd", lambda x: np.stack([x, x, x], 2)[:, :, 1]),
    "part of head_dim": ("bshd", lambda x: x[..., 3:13]),
    "batches backwards": ("bshd", lambda x: x[::-1]),
    "tokens backwards": ("bshd", lambda x: x[:, ::-1]),
    "heads backwards": ("bshd", lambda x: x[:, :, ::-1]),
    "every second head": ("bshd", lambda x: x[:, :, ::2]),
    "one batch for all": ("bshd", lambda x: np.broadcast_to(x[:1], x.shape)),
    "one token for all": ("bshd", lambda x: np.broadcast_to(x[:, :1], x.shape)),
    "one head for all": ("bshd", lambda x: np.broadcast_to(x[:, :, :1], x.shape)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views(any_path, view, dtype, rng):
    """Those of :func:`numpy.broadcast_to` are read-only besides."""
    axes, make = VIEWS[view]
    for layout in LAYOUTS:
        x, rope = make(sample(rng, 2, 130, 3, 16, dtype=dtype)), RoPE(layout=layout)
        before = x.copy()
        same(rope.rotate(x, POSITIONS, axes=axes), truth(rope.rotate, before, POSITIONS, axes=axes))
        same(x, before)


class Derived(np.ndarray):
    """An array of a user's class."""


def unaligned(x):
    return np.frombuffer(bytearray(1) + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


COPIED = {
    "every second component": lambda x: x[..., ::2],
    "components backwards": lambda x: x[..., ::-1],
    "Fortran order": np.asfortranarray,
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
}
OTHER = {"file": lambda x: x.view(np.memmap), "class": lambda x: x.view(Derived)}


@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_memory_that_kernels_have_copied(path, kind, dtype, rng):
    for layout in LAYOUTS:
        x, rope = COPIED[kind](sample(rng, 2, 130, 3, 16, dtype=dtype)), RoPE(layout=layout)
        expected = truth(rope.rotate, np.array(x, dtype, order="C"), POSITIONS)
        before = np.array(x)
        got = rope.rotate(x, POSITIONS)
        assert got.dtype == x.dtype
        same(np.array(got, dtype), expected)
        same(np.array(x, dtype), before.astype(dtype))
        assert rope.rotate(x, POSITIONS, out=x) is x
        same(np.array(x, dtype, order="C"), expected)


@pytest.mark.parametrize("kind", OTHER)
def test_classes_of_their_own(kind, rng):
    pytest.importorskip("llvmlite")
    x = OTHER[kind](sample(rng, 2, 130, 3, 16))
    expected = truth(RoPE().rotate, np.array(x, np.float32, order="C"), POSITIONS)
    with rope_xp.use_path("llvm"), pytest.raises(RopeError, match="is a class derived"):
        RoPE().rotate(x, POSITIONS)
    assert rope_xp.explain(x, x, POSITIONS).path == "portable"
    same(np.asarray(RoPE().rotate(x, POSITIONS)), expected)
    RoPE().rotate(x, POSITIONS, out=x)
    same(np.array(x), expected)


@pytest.mark.parametrize("kind", ["Fortran order", "byte order", "unaligned", *OTHER])
def test_angles_in_any_memory(any_path, kind, rng):
    make = (COPIED | OTHER)[kind]
    x, angles = sample(rng, 2, 130, 3, 16), RoPE().cos_sin(POSITIONS, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    same(RoPE().rotate(x, make(POSITIONS)), expected)
    same(rope_xp.apply_tables(x, *map(make, angles)), expected)
