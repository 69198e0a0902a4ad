"""The kernel for GPUs on the CPU (support/cuda_on_cpu.py): every key, accesses and launches."""

import mmap
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from rope_xp_backends.gpu.cuda_plan import (
    COMPONENTS,
    COS_SIN,
    NARROW_COS_SIN,
    TABLE_LOOKUP,
    CudaKey,
)
from support import cuda_on_cpu
from support.bits import same, sample
from support.cases import slow
from support.equality import LAYOUTS, list_caches
from support.targets import lent, numpy_dtype, truth

import rope_xp
from rope_xp import RoPE
from rope_xp._arguments import parse
from rope_xp._core.call import UNKNOWN
from rope_xp._dispatch.backend import Backend

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 23, 21)
POSITIONS[0] = 0
ACCESSES = sorted({(key.dtype, key.access) for key in cuda_on_cpu.every_key()})
NORMS = sorted({(key.dtype, key.access) for key in cuda_on_cpu.norm_keys()})


@pytest.fixture(autouse=True)
def _cuda_on_numpy():
    if reason := cuda_on_cpu.decline_reason():
        pytest.skip(reason)
    with lent(cuda_on_cpu.PATH), rope_xp.use_path("cuda"):
        yield


def place(x, alignment):
    """Return a copy whose address this power of two divides, and no greater one."""
    buffer = np.empty(x.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 32 + alignment
    copy = buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize(("dtype", "access"), ACCESSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kernel_has_the_bits_of_numpy(dtype, layout, access, rng):
    q, k = (place(sample(rng, 2, 21, h, 64, dtype=dtype), access) for h in (5, 2))
    k[..., ::3] *= 0  # zeros of both signs, which results have too
    rope = RoPE(layout=layout)
    sections = replace(rope, position_axes=(0, 1, 2, 1) * 8)
    three = np.stack([POSITIONS, POSITIONS[::-1], POSITIONS // 7])
    angles = rope.with_tables(*rope.cos_sin(POSITIONS, 64))
    calls = [
        (TABLE_LOOKUP, partial(rope.rotate, positions=POSITIONS)),
        (TABLE_LOOKUP, partial(rope.unrotate, positions=POSITIONS)),
        (COMPONENTS, partial(sections.rotate, positions=three)),
        (COMPONENTS, partial(sections.unrotate, positions=three)),
        *((COS_SIN, angles.rotate), (COS_SIN, angles.unrotate)),
    ]
    if q.itemsize == 2:
        narrow = rope.with_tables(*(place(t.astype(q.dtype), 16) for t in (angles.cos, angles.sin)))
        calls += [(NARROW_COS_SIN, narrow.rotate), (NARROW_COS_SIN, narrow.unrotate)]
    seen, pairs = set(), (layout != "half", layout == "interleaved")
    for i, (source, turn) in enumerate(calls):
        read, write = pairs[::-1] if i % 2 else pairs
        source = COS_SIN if dtype == "float64" else source  # noqa: PLW2901  # float64 is given
        for x in (q, k):
            expected, in_place = truth(turn, x), place(x, access)
            for out in (place(x, access), in_place):
                same(turn(in_place if out is in_place else x, out=out), expected)
                (key,) = cuda_on_cpu.get_keys()
                assert key == CudaKey(dtype, read, write, access, source, out is in_place)
                seen.add(key)
    results = rope.apply(q, k, POSITIONS, out=(place(q, access), place(k, access)))
    same(results, truth(rope.apply, q, k, POSITIONS))
    assert len(cuda_on_cpu.get_keys()) == 1  # q and k in one launch
    keys = [x for x in cuda_on_cpu.every_key() if (x.dtype, x.access) == (dtype, access)]
    assert seen == {key for key in keys if key[1:3] in (pairs, pairs[::-1])}


def padded(shape, rows=0, head_dim=0):
    """Return zeros of bfloat16 with so many components more behind each token, and each head."""
    batch, tokens, heads, d = shape
    row = heads * (d + head_dim) + rows
    x = place(np.zeros(batch * tokens * row, numpy_dtype("bfloat16")), 16)
    strides = (2 * tokens * row, 2 * row, 2 * (d + head_dim), 2)
    return np.lib.stride_tricks.as_strided(x, shape, strides)


# What lies askew, where all else is a multiple of 16 bytes, and the access that is left: in layout
# half and interleaved. A rotation by 6 pairs is shared out by 2 pairs a thread.
ASKEW = {
    "nothing": (lambda: padded((2, 21, 8, 64), 8, 8), {}, (16, 16)),
    "heads": (lambda: padded((2, 21, 8, 64), 0, 2), {}, (4, 4)),
    "tokens": (lambda: padded((2, 21, 8, 64), 4), {}, (8, 8)),
    "batches": (lambda: padded((2, 21, 8, 66), 8, 6)[..., :64], {}, (16, 16)),
    "slice": (lambda: padded((2, 21, 8, 64)), {"rotary_dim": 32, "rotary_offset": 1}, (2, 2)),
    "pairs": (lambda: padded((2, 21, 8, 64)), {"rotary_dim": 12}, (4, 8)),
    "what passes": (lambda: padded((2, 21, 8, 66), 0, 6), {"rotary_dim": 64}, (4, 4)),
}


@pytest.mark.parametrize("kind", ASKEW)
def test_accesses_are_as_wide_as_the_alignment_of_arrays_allows(kind, rng):
    make, slices, accesses = ASKEW[kind]
    for layout, access in zip(("half", "interleaved"), accesses, strict=True):
        x, out, rope = make(), make(), RoPE(layout=layout, **slices)
        x[...] = sample(rng, *x.shape, dtype="bfloat16")
        expected = truth(rope.rotate, x, POSITIONS)
        same(rope.rotate(x, POSITIONS, out=out), expected)
        assert cuda_on_cpu.get_keys()[0].access == access
        same(rope.rotate(x, POSITIONS, out=x), expected)


def test_accesses_are_as_wide_as_the_alignment_of_tables_allows(rng):
    x = place(sample(rng, 21, 2, 64, dtype="bfloat16"), 16)
    for columns, start, access in ((32, 0, 16), (33, 0, 2), (34, 0, 4), (36, 2, 4), (36, 4, 16)):
        tables = [place(np.zeros((21, columns), np.float32), 16)[:, start:] for _ in "cs"]
        cos, sin = (table[:, :32] for table in tables)
        cos[...], sin[...] = RoPE().cos_sin(POSITIONS, 64)
        apply = partial(rope_xp.apply_tables, x, cos, sin, layout="half")
        same(apply(), truth(apply))
        assert cuda_on_cpu.get_keys()[0].access == access


@pytest.mark.parametrize("head_dim", [2, 6, 80, 576, slow(2048)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_head_dim_has_the_bits_of_numpy(head_dim, layout, rng):
    """Beside powers of two; and so large that a block has no thread for each pair."""
    for dtype in ("bfloat16", "float64"):
        x, rope = sample(rng, 2, 3, 2, head_dim, dtype=dtype), RoPE(layout=layout)
        expected = truth(rope.rotate, x, POSITIONS[:3])
        same(rope.rotate(x, POSITIONS[:3]), expected)
        same(rope.rotate(x, POSITIONS[:3], out=x), expected)


CACHES = list_caches(64)


@pytest.mark.parametrize("names", CACHES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_keys_go_to_slots_in_the_same_launch(dtype, axes, names, rng, monkeypatch):
    """To padding, beyond the cache and below zero nothing goes."""
    chosen = np.array([[5, -1, 2, 0, 7], [3, 8, -1, 1 if "b" in str(names) else 15, 4]])
    shapes = [(2, 5, n, 64) if axes == "bshd" else (2, n, 5, 64) for n in (5, 2)]
    q, k = (place(sample(rng, *shape, dtype=dtype), 16) for shape in shapes)
    first, rope = sample(rng, *CACHES[names], dtype=dtype), RoPE(layout="half", rotary_dim=32)
    call = partial(rope.apply, q, k, POSITIONS[:5], axes=axes, cache_axes=names)
    expected = first.copy()
    rotated, _ = truth(call, slots=chosen, out=(None, expected))
    # No value of a slot is read before the kernel, as on a GPU.
    monkeypatch.setattr(Backend, "host_view", lambda *_: None)
    outside = np.where(chosen < 0, [[0, -7, 0, 0, 0], [0, 0, 1 << 40, 0, 0]], chosen)
    for slots, q_out in (
        (chosen, None),
        (chosen.astype(np.int32), np.empty_like(q)),
        (outside, None),
    ):
        cache = place(first, 16)
        got = call(slots=slots, out=(q_out, cache))
        same(got[0], rotated)
        same(cache, expected)
        (ran,) = cuda_on_cpu.PATH.ran
        assert ran.grid[2] == 1


@pytest.mark.parametrize("pages", [(16,), (4, 4)])
def test_a_cache_of_negative_strides_is_written_where_it_lies(pages, rng):
    q, k = (place(sample(rng, 1, 3, heads, 64), 16) for heads in (4, 2))
    first, call = sample(rng, *pages, 2, 64), partial(RoPE().apply, q, k, slots=[9, -1, 14])
    expected, cache = first.copy()[::-1], place(first, 16)[::-1]
    truth(call, out=(None, expected))
    call(out=(None, cache))
    same(cache, expected)
    assert (cache != first[::-1]).any()


@pytest.mark.parametrize("tokens", [21, 5, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_with_angles_of_their_own_take_the_same_launch(layout, tokens, rng):
    rope = RoPE(layout=layout)
    sections = replace(rope, position_axes=(0, 1, 2, 1) * 8)
    own, three = POSITIONS[:tokens] // 3, np.stack([POSITIONS, POSITIONS[::-1], POSITIONS // 7])
    for dtype in ("bfloat16", "float32"):
        q, k = (place(sample(rng, 2, n, h, 64, dtype=dtype), 16) for n, h in ((21, 5), (tokens, 2)))
        angles = [sample(rng, n, 32) for n in (21, tokens)]
        given = {"angles": angles[0], "k_angles": angles[1], "layout": layout}
        for call in (
            partial(rope.apply, q, k, POSITIONS, k_positions=own),
            partial(sections.apply, q, k, three, k_positions=three[:, :tokens] // 2),
            partial(rope_xp.apply_angles, q, k, **given),
        ):
            expected = truth(call)
            for out in ((np.empty_like(q), np.empty_like(k)), (place(q, 16), place(k, 16))):
                for x, y in zip(call(out=out), expected, strict=True):
                    same(x, y)
                (ran,) = cuda_on_cpu.PATH.ran
                assert ran.key.apart
                assert ran.grid[2] == 2
        cache, slots = place(sample(rng, 50, 2, 64, dtype=dtype), 16), np.arange(2 * tokens)
        options = {"k_positions": own, "slots": slots.reshape(2, tokens)[:, ::-1]}
        keys = cache.copy()
        expected = truth(rope.apply, q, k, POSITIONS, out=(None, keys), **options)
        same(rope.apply(q, k, POSITIONS, out=(None, cache), **options)[0], expected[0])
        same(cache, keys)
        assert len(cuda_on_cpu.PATH.ran) == 1


@pytest.mark.slow  # which has all kernels compiled once more
@pytest.mark.parametrize(("dtype", "access"), NORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_are_within_two_ulp(dtype, layout, access, rng):
    """Of q and k by weights of their own; of a slice; without weights; new and in place."""
    compute_dtype = np.float64 if dtype == "float64" else np.float32
    for rotary_dim, weighted in ((64, True), (64, False), (32, True)):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=64 - rotary_dim)
        q, k = (place(sample(rng, 2, 21, h, 64, dtype=dtype), access) for h in (5, 2))
        weights = [place(sample(rng, rotary_dim, dtype=dtype), access) for _ in "qk"]
        norm = rope_xp.QKNorm(*(weights if weighted else ()), offset=float(not weighted))
        wide = truth(rope.apply, *(x.astype(compute_dtype) for x in (q, k)), POSITIONS, norm=norm)
        for out in (tuple(place(x, access) for x in (q, k)), (q, k)):
            got = rope.apply(q, k, POSITIONS, norm=norm, out=out)
            (key,) = cuda_on_cpu.get_keys()
            assert (key.norm, key.access) == (True, access)
            for y, e in zip(got, wide, strict=True):
                # Sums in another order move the factor by an ulp at most, and products round: 2
                # ulp of a pair, so of the head's largest component. Then 16 bits are rounded once.
                bound = 2 * np.finfo(compute_dtype).eps * np.abs(e).max(-1, keepdims=True)
                rounding = np.abs(e) * float(ml_dtypes.finfo(y.dtype).eps) / 2
                assert (np.abs(y.astype(compute_dtype) - e) <= bound + rounding).all()


def test_norms_that_no_kernel_takes_are_refused_by_reason(rng):
    x, w = sample(rng, 21, 2, 512), np.ones(512, np.float32)
    for reason, rope, y, norm in (
        ("of 256 components", RoPE(), x, (w, 1e-6)),
        ("what is rotated", RoPE(rotary_dim=32), x[..., :64], (w[:64], 1e-6)),
        ("in one dtype", RoPE(), x[..., :64], (w[:64].astype(np.float16), 1e-6)),
        ("is not contiguous", RoPE(), x[..., :64], (w[::8], 1e-6)),
        ("one weight for all heads", RoPE(), x[..., :256], (w.reshape(2, 256), 1e-6)),
    ):
        with pytest.raises(rope_xp.RopeError, match=reason):
            rope.rotate(y, POSITIONS, norm=norm)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_device_positions_out_of_range_give_nan_in_every_pair(dtype, rng):
    outside = [1 << 31, -(1 << 31), 1 << 62, -(1 << 63)] if dtype == "int64" else [-(1 << 31)]
    inside = [(1 << 31) - 1, 1 - (1 << 31), 0, -1, 2047, -2048, 1 << 22]
    positions = np.array(outside + inside, dtype)
    q, k = sample(rng, len(positions), 3, 64), sample(rng, len(positions), 1, 64)
    call = parse.rotate(RoPE(), (q, k), np.zeros(len(positions), int), None, None)
    (lookup,) = call.angles
    lookup.whole, lookup.position_range = positions, UNKNOWN
    for got, x in zip(cuda_on_cpu.PATH.run(call), (q, k), strict=True):
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
        cuda_on_cpu.PATH.ran.clear()
        del x, buffer


@pytest.mark.parametrize("layout", LAYOUTS)
def test_q_in_place_and_k_not_copies_what_passes_through_for_k(layout, rng):
    for rotary_dim, offset in ((64, 448), (12, 64)):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        q, k = (sample(rng, 2, 3, h, 512, dtype="bfloat16") for h in (3, 1))
        expected = truth(rope.apply, q, k, POSITIONS[:3])
        same(rope.apply(q, k, POSITIONS[:3], out=(q, np.zeros_like(k))), expected)
