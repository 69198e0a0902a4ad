"""Kernels on numpy's arrays have numpy's bits, of every number and size, in memory of any kind."""

import contextlib
import itertools
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from support.bits import same, sample
from support.cases import slow
from support.equality import LAYOUTS
from support.fuzz import cases
from support.fuzz.memory import View, lay
from support.kinds import KINDS
from support.rules import Times
from support.targets import ALL_FLOATS, numpy_dtype, truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)


# Infinity times zero is among them.
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("pairs", [32, 1])  # whole vectors, and what is left beside them
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_numbers_of_16_bits_have_the_bits_of_numpy(any_path, dtype, pairs, layout):
    """Each as x1 and as x2, with each of three partners, at each of three angles."""
    x1 = np.arange(1 << 16, dtype=np.uint16)
    partners = [np.roll(x1, n) for n in (1, 0x3F80, 0x8001)]
    x = np.stack([np.stack([x1, x2], -1) for x2 in partners]).reshape(3, 1, -1, pairs, 2)
    x = x.swapaxes(-1, -2) if layout == "half" else x
    x = np.repeat(x.reshape(3, 1, -1, 2 * pairs), 3, axis=1).view(numpy_dtype(dtype))
    rope, positions = RoPE(layout=layout), [0, 1, 12_345]
    same(rope.rotate(x, positions), truth(rope.rotate, x, positions))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_slices_of_every_width_and_alignment_have_the_bits_of_numpy(any_path, dtype, layout, rng):
    """Which fill whole vectors or not, and more tokens than a block."""
    slices = [(r, 1, r + 4) for r in (2, 6, 34, 80)] + [(64, offset, 96) for offset in (0, 2, 16)]
    for rotary_dim, offset, head_dim in slices:
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        x = sample(rng, 2, 130, 3, head_dim, dtype=dtype)
        for turn in (rope.rotate, rope.unrotate):
            y, expected = x.copy(), truth(turn, x, POSITIONS)
            same((turn(x, POSITIONS), turn(y, POSITIONS, out=y), y), (expected,) * 3)


# Fewer pairs than kernels keep in registers, and more.
@pytest.mark.parametrize("head_dim", [80, 160])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_at_every_place_in_a_line_have_the_bits_of_numpy(any_path, layout, head_dim, rng):
    """Of 64 bytes: numpy's large arrays begin 16 behind it."""
    rope, shape = RoPE(layout=layout), (2, 5, 3, head_dim)
    for dtype, place in itertools.product(("float16", "float32", "float64"), range(0, 64, 16)):
        x = sample(rng, *shape, dtype=dtype)
        memory = np.empty(x.nbytes + 64, np.uint8)
        y = memory[(place - memory.ctypes.data) % 64 :][: x.nbytes].view(dtype).reshape(shape)
        y[...] = x
        same((rope.rotate(y), rope.rotate(y, out=y), y), (truth(rope.rotate, x),) * 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_of_every_sign_and_payload_stays_nan(any_path, dtype):
    """Rounding must not carry it over into a number."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    table = bits.view(np.float32)[:, None].repeat(32, axis=1)
    x = np.ones((3, 1, 64), numpy_dtype(dtype))
    got = rope_xp.apply_tables(x, table, table)
    assert np.isnan(got.astype(np.float64)).all()


@pytest.mark.parametrize("far_bytes", [1, 1 << 40])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_blocks_of_any_number_of_tokens_have_the_bits_of_numpy(
    any_path, dtype, far_bytes, tune, rng
):
    """Where heads lie apart: a block that holds all tokens, some that do not, and the least."""
    positions = rng.integers(0, 1 << 20, (2, 333))
    q, k = sample(rng, 2, 3, 333, 8, dtype=dtype), sample(rng, 2, 1, 333, 8, dtype=dtype)
    rope = RoPE(layout="interleaved_to_half")
    expected = truth(rope.apply, q, k, positions, axes="bhsd")
    for held in (1 << 21, 10_000, 1):
        tune(far_bytes=far_bytes, far_angle_bytes=held, angle_bytes=held)
        x = q.copy()
        same(rope.apply(q, k, positions, axes="bhsd"), expected)
        same(rope.rotate(x, positions, axes="bhsd", out=x), expected[0])


# All of one component, sections, interleaved, and a section in two pieces.
AXES = [None, (0,) * 5 + (1,) * 12 + (2,) * 8, (0, 1, 2) * 8 + (0,), (0,) * 9 + (2,) * 15 + (0,)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])  # float32 is computed as bfloat16
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_components_and_fractions_have_the_bits_of_numpy(any_path, kind, axes, dtype, rng):
    """And with frequencies so high that a fraction of a token turns by many quarters, both ways."""
    lead = () if axes is None else (3,)
    x = sample(rng, 2, 130, 3, 50, dtype=dtype)
    for shape in ((130,), (2, 130), (2, 1)):
        positions = rng.integers(-70_000, 1 << 22, (*lead, *shape))
        if kind == "floats":
            positions = positions + rng.random(positions.shape)
        for scaling in (None, rope_xp.scaling.Linear(0.01), Times(-100.0)):
            rope = RoPE(position_axes=axes, layout="half", scaling=scaling)
            for turn in (rope.rotate, rope.unrotate):
                same(turn(x, positions), truth(turn, x, positions))


@pytest.mark.parametrize("path", ["portable", slow("native")])
def test_fractions_of_too_fast_pairs_give_nan_when_compiled(path):
    torch = pytest.importorskip("torch")
    rope, x = RoPE(layout="half", base=1e-5), torch.ones(3, 1, 8)
    assert rope.frequencies(8)[-2] < 4096 < rope.frequencies(8)[-1]
    with rope_xp.use_path(path):
        rotate = torch.compile(rope.rotate, backend="eager", fullgraph=True)
        y = rotate(x, torch.tensor([0.5, 0.25, 3.75]))
    np.testing.assert_array_equal(y.isnan()[:, 0], [[False, False, False, True] * 2] * 3)


def plain(x):
    return np.array(x, x.dtype.newbyteorder("="), order="C")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(view=cases.views(4, ALL_FLOATS, True), layout=st.sampled_from(LAYOUTS))
def test_memory_of_every_kind_is_rotated_as_its_copy(any_path, view, layout):
    """Where kernels cannot read or write it, a copy is. What lies around it stays."""
    if any_path == "cuda":  # which declines where head_dim is not contiguous
        view = View(view.dtype, (*(a for a in view.order if a < 3), 3), (*view.steps[:3], 1))
    memory, x = lay((2, 130, 3, 16), view)
    rope, before, whole = RoPE(layout=layout), plain(x), memory.copy()
    got, expected = rope.rotate(x, POSITIONS), truth(rope.rotate, before, POSITIONS)
    assert got.dtype == x.dtype
    same((plain(got), plain(x)), (expected, before))
    if 0 not in view.steps:  # else elements are shared
        assert rope.rotate(x, POSITIONS, out=x) is x
        same(plain(x), expected)
        x[...] = before
    np.testing.assert_array_equal(memory, whole)


def test_classes_derived_from_arrays_take_the_portable_path(native, rng):
    x = KINDS["class"](sample(rng, 2, 130, 3, 16))
    expected = truth(RoPE().rotate, np.array(x, np.float32, order="C"), POSITIONS)
    with rope_xp.use_path("native"), pytest.raises(RopeError, match="is a class derived"):
        RoPE().rotate(x, POSITIONS)
    assert rope_xp.explain(x, x, POSITIONS).path == "portable"
    for out in (None, x):
        same(np.asarray(RoPE().rotate(x, POSITIONS, out=out)), expected)


def misshape(*shape):
    """Return an array of a class that says it has another shape than it has."""
    said = {"shape": property(lambda _: shape), "ndim": property(lambda _: len(shape))}
    return np.ones(8, np.float32).view(type("Misshapen", (np.ndarray,), said))


def test_arrays_that_say_they_are_larger_than_they_are_are_refused(native):
    x = np.ones((3, 2, 64), np.float32)
    with pytest.raises(RopeError):
        RoPE().rotate(x, norm=(misshape(64), 1e-6))
    with pytest.raises((RopeError, IndexError)):
        rope_xp.apply_tables(x, misshape(3, 32), misshape(3, 32))


def test_arrays_that_interleave_in_14_axes_are_rotated_or_refused_within_seconds(native):
    """To be sure that they do not overlap takes 8 seconds, and a few times as long with an axis."""
    steps = np.random.default_rng(2).dirichlet(np.ones(14)) * 5e8, 3 * 4.2 ** np.arange(14)[::-1]
    buffer, shape = np.zeros(520_000_000, np.float32), (2,) * 14 + (1, 2)
    x, out = (
        as_strided(buffer[start:], shape, (*(step.astype(int) * 4), 4, 4))
        for start, step in zip((0, 3), steps, strict=True)
    )
    start = time.monotonic()
    with contextlib.suppress(RopeError):
        RoPE().rotate(x, axes="abcefghijklmnosd", out=out)
    assert time.monotonic() - start < 4
