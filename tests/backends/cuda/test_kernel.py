"""The kernel for GPUs on the CPU (support/cuda_on_cpu.py): every key, accesses and launches."""

import mmap
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rope_xp_backends.gpu.cuda_plan import (
    COMPONENTS,
    COS_SIN,
    TABLE_LOOKUP,
    CudaKey,
)
from support import cuda_on_cpu
from support.bits import same, sample
from support.equality import LAYOUTS
from support.targets import lent, truth

import rope_xp
from rope_xp import RoPE
from rope_xp._arguments import parse
from rope_xp._core.call import UNKNOWN

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 23, 21)
POSITIONS[0] = 0
THREE = np.stack([POSITIONS, POSITIONS[::-1], POSITIONS // 7])
ACCESSES = sorted({(key.dtype, key.access) for key in cuda_on_cpu.every_key()})
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def _cuda_on_numpy():
    if reason := cuda_on_cpu.decline_reason():
        pytest.skip(reason)
    with lent(cuda_on_cpu.PATH), rope_xp.use_path("cuda"):
        yield


def place(x, alignment=16):
    """Return a copy whose address this power of two divides, and no greater one."""
    buffer = np.empty(x.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 32 + alignment
    copy = buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize(("dtype", "access"), ACCESSES)
@every_layout
def test_every_kernel_has_the_bits_of_numpy(dtype, layout, access, rng):
    q, k = (place(sample(rng, 2, 21, h, 64, dtype=dtype), access) for h in (5, 2))
    k[..., ::3] *= 0  # zeros of both signs, which results have too
    rope = RoPE(layout=layout)
    sections = replace(rope, position_axes=(0, 1, 2, 1) * 8)
    angles = rope.with_tables(*rope.cos_sin(POSITIONS, 64))
    ways = [(TABLE_LOOKUP, rope, (POSITIONS,)), (COMPONENTS, sections, (THREE,))]
    ways.append((COS_SIN, angles, ()))
    seen, pairs = set(), (layout != "half", layout == "interleaved")
    for source, rotator, given in ways:
        for turn, ends in ((rotator.rotate, pairs), (rotator.unrotate, pairs[::-1])):
            for x in (q, k):
                expected, in_place = truth(turn, x, *given), place(x, access)
                for read, out in ((x, place(x, access)), (in_place, in_place)):
                    same(turn(read, *given, out=out), expected)
                    (key,) = cuda_on_cpu.get_keys()
                    of = COS_SIN if dtype == "float64" else source  # float64 is given cos and sin
                    assert key == CudaKey(dtype, *ends, access, of, out is in_place)
                    seen.add(key)
    results = rope.apply(q, k, POSITIONS, out=(place(q, access), place(k, access)))
    same(results, truth(rope.apply, q, k, POSITIONS))
    assert len(cuda_on_cpu.get_keys()) == 1  # q and k in one launch
    keys = [x for x in cuda_on_cpu.every_key() if (x.dtype, x.access) == (dtype, access)]
    assert seen == {key for key in keys if key[1:3] in (pairs, pairs[::-1])}


def padded(rng, head_dim, of_tokens, of_heads):
    """Return numbers of bfloat16 with so many components more behind each token, and each head."""
    row, step = 8 * (head_dim + of_heads) + of_tokens, head_dim + of_heads
    memory = place(sample(rng, 2 * 21 * row, dtype="bfloat16"))
    strides = 2 * 21 * row, 2 * row, 2 * step, 2
    return np.lib.stride_tricks.as_strided(memory, (2, 21, 8, head_dim), strides)


# What lies askew, where all else is a multiple of 16 bytes: the arrays, the components that are
# used, what is rotated of them, and the access that is left, in layout half and interleaved. A
# rotation by 6 pairs is shared out by 2 pairs a thread.
ASKEW = {
    "nothing": ((64, 8, 8), 64, {}, (16, 16)),
    "heads": ((64, 0, 2), 64, {}, (4, 4)),
    "tokens": ((64, 4, 0), 64, {}, (8, 8)),
    "batches": ((66, 8, 6), 64, {}, (16, 16)),
    "slice": ((64, 0, 0), 64, {"rotary_dim": 32, "rotary_offset": 1}, (2, 2)),
    "pairs": ((64, 0, 0), 64, {"rotary_dim": 12}, (4, 8)),
    "what passes": ((66, 0, 6), 66, {"rotary_dim": 64}, (4, 4)),
}


@pytest.mark.parametrize("kind", ASKEW)
def test_accesses_are_as_wide_as_the_alignment_of_arrays_allows(kind, rng):
    shape, used, part, accesses = ASKEW[kind]
    for layout, access in zip(("half", "interleaved"), accesses, strict=True):
        x, out = (padded(rng, *shape)[..., :used] for _ in "xy")
        rope = RoPE(layout=layout, **part)
        same(rope.rotate(x, POSITIONS, out=out), truth(rope.rotate, x, POSITIONS))
        assert cuda_on_cpu.get_keys()[0].access == access


def test_accesses_are_as_wide_as_the_alignment_of_tables_allows(rng):
    x = place(sample(rng, 21, 2, 64, dtype="bfloat16"))
    for columns, start, access in ((32, 0, 16), (33, 0, 2), (34, 0, 4), (36, 2, 4), (36, 4, 16)):
        tables = [place(np.zeros((21, columns), np.float32))[:, start:] for _ in "cs"]
        cos, sin = (table[:, :32] for table in tables)
        cos[...], sin[...] = RoPE().cos_sin(POSITIONS, 64)
        apply = partial(rope_xp.apply_tables, x, cos, sin, layout="half")
        same(apply(), truth(apply))
        assert cuda_on_cpu.get_keys()[0].access == access


@pytest.mark.parametrize(
    ("message", "head_dim", "rotary_dim", "weight"),
    [
        ("of 256 components", 512, None, np.ones(512, "f4")),
        ("what is rotated", 64, 32, np.ones(64, "f4")),
        ("in one dtype", 64, None, np.ones(64, "f2")),
        ("is not contiguous", 64, None, np.ones(128, "f4")[::2]),
        ("one weight for all heads", 64, None, np.ones((2, 64), "f4")),
    ],
)
def test_norms_that_no_kernel_takes_are_refused_by_reason(
    message, head_dim, rotary_dim, weight, rng
):
    x = sample(rng, 21, 2, head_dim)
    with pytest.raises(rope_xp.RopeError, match=message):
        RoPE(rotary_dim=rotary_dim).rotate(x, POSITIONS, norm=(weight, 1e-6))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_device_positions_out_of_range_give_nan_in_every_pair(dtype, rng):
    outside = [1 << 31, -(1 << 31), 1 << 62, -(1 << 63)] if dtype == "int64" else [-(1 << 31)]
    inside = [(1 << 31) - 1, 1 - (1 << 31), 0, -1, 2047, -2048, 1 << 22]
    x = sample(rng, len(outside + inside), 3, 64)
    call = parse.rotate(RoPE(), (x,), np.zeros(len(x), int), None, None)
    (lookup,) = call.angles
    lookup.whole, lookup.position_range = np.array(outside + inside, dtype), UNKNOWN
    (got,) = cuda_on_cpu.PATH.run(call)
    assert np.isnan(got[: len(outside)]).all()
    same(got[len(outside) :], truth(RoPE().rotate, x[len(outside) :], inside))


@pytest.mark.parametrize("axes", ["shd", "hsd"])
def test_strides_beyond_32_bits_are_followed(axes, rng):
    """Tokens, or heads, 3 GiB apart, in memory that is promised and not there."""
    apart = 3 << 30
    with mmap.mmap(-1, 2 * apart + (1 << 20)) as memory:
        buffer = np.frombuffer(memory, np.uint8)
        strides = (apart, 256, 2) if axes == "shd" else (apart, 512, 2)
        x = np.ndarray((3, 2, 128), np.float16, buffer, 64, strides)
        x[...] = sample(rng, 3, 2, 128, dtype="float16")
        positions = POSITIONS[: 3 if axes == "shd" else 2]
        expected = truth(RoPE().rotate, x.copy(), positions, axes=axes)
        same(RoPE().rotate(x, positions, axes=axes, out=x).copy(), expected)
        cuda_on_cpu.PATH.ran = ()
        del x, buffer
