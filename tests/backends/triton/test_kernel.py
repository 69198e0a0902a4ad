"""The kernels for GPUs beside the portable path: on a GPU, CUDA's by g++, and Triton's with

TRITON_INTERPRET=1 pytest -n 0 tests/backends/triton/test_kernel.py
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from rope_xp_backends.gpu import cuda, triton_plan
from support.bits import same, sample
from support.equality import LAYOUTS, list_caches
from support.targets import TARGETS, numpy_dtype, truth

import rope_xp
from rope_xp import QKNorm, RoPE
from rope_xp._dispatch import find

pytest.importorskip("torch")
pytest.importorskip("triton")

from rope_xp_backends.torch import gpu  # it needs torch

POSITIONS = np.array([0, 2047, 70_000, (1 << 31) - 1, -1])


@contextmanager
def wide_offsets():
    """Take 64 bits for offsets, as if every tensor had more than 2**31 elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_plan, "_INT32", 0)
        yield


def kernels(*paths, of_cuda=()):
    """Return backends whose bits are numpy's; CUDA's on a CPU takes these marks."""
    cases = []
    for target in (replace(t, ulps=0, compiles=False) for t in TARGETS if t.path in paths):
        marks = [pytest.mark.gpu] if target.gpu else []
        if target.path == "cuda":
            cases.append(pytest.param(target, marks=marks or of_cuda, id=target.name))
            continue
        wide = replace(target, name=f"{target}, 64 bits", set_up=wide_offsets)
        too = [pytest.mark.unsanitized] if target.gpu else []  # it would take minutes
        cases += [pytest.param(target, marks=marks, id=target.name)]
        cases += [pytest.param(wide, marks=marks + too, id=wide.name)]
    return pytest.mark.parametrize("backend", cases)


every_kernel = kernels("cuda", "triton")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def launches(monkeypatch):
    """What is launched, of either kernel."""
    launch, build, seen = gpu.TritonLaunch.__call__, cuda.build_launches, []
    replaced = {
        (gpu.TritonLaunch, "__call__"): lambda *call: seen.append(call) or launch(*call),
        (cuda, "build_launches"): lambda *call: [seen.append(x) or x for x in build(*call)],
    }
    for name, count in replaced.items():
        monkeypatch.setattr(*name, count)
    return seen


def hide_values(backend, patch):
    """Let no value of a position or slot be read before the kernel, as on a GPU."""
    library = find.require_backend(backend.make(np.ones(1, np.float32)), "x")
    patch.setattr(type(library), "host_view", lambda *_: None)


def numbers(rng, *shape, dtype="float32"):
    """Return rows of numbers of every size, also below normal ones, and zeros of both signs."""
    least = {"float16": -7, "bfloat16": -33}.get(
        dtype, -44
    )  # the interpreter has no small bfloat16
    scale = 10.0 ** rng.integers(least, 4, (*shape[:-1], 1))
    x = rng.standard_normal(shape) * scale
    x[..., ::3] *= 0
    return x.astype(numpy_dtype(dtype))


def compare(backend, got, expected):
    """Require the same bits, of bfloat16 those of a neighbour where it is truncated."""
    if isinstance(expected, tuple):
        for one, right in zip(got, expected, strict=True):
            compare(backend, one, right)
    elif backend.truncates and expected.dtype.name == "bfloat16":
        bits, right = (x.view(np.int16).astype(int) for x in (backend.back(got), expected))
        assert np.abs(bits - right).max(initial=0) <= 1
    else:
        same(backend.back(got), expected)


def check(backend, call, *arrays):
    """Check new results, and those over the first array, and over all."""
    expected = truth(call, *arrays)
    for over in range(len(arrays) + 1):
        made = [backend.make(x) for x in arrays]
        out = (*made[:over], *(backend.make(x * 0) for x in arrays[over:]))
        out = out if len(arrays) > 1 else out[0]
        compare(backend, call(*made, out=out if over else None), expected)
        for x, before in zip(made[over:], arrays[over:], strict=True):
            same(backend.back(x), before)


# Components of a head, those that are rotated, and the first of these. The last are so many, and
# lie so, that a thread of CUDA's rotates one pair and a block has no thread for each.
PARTS = [(2, 2, 0), (6, 6, 0), (80, 80, 0), (24, 8, 16), (24, 6, 5), (37, 2, -2), (520, 514, 3)]


@every_kernel
@every_layout
@pytest.mark.parametrize(("head_dim", "rotary_dim", "offset"), PARTS)
def test_slices_of_heads_of_every_width_equal_the_portable_path(
    backend, head_dim, rotary_dim, offset, layout, rng
):
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
    for dtype in backend.floats:
        q, k = (numbers(rng, 2, 5, heads, head_dim, dtype=dtype) for heads in (3, 1))
        check(backend, partial(rope.apply, positions=POSITIONS), q, k)
        check(backend, partial(rope.unrotate, positions=POSITIONS), q)


@every_kernel
@pytest.mark.parametrize("start", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_at_any_address_leave_their_neighbours(backend, dtype, start, rng):
    """Which no access of 16 bytes can read."""
    for layout in LAYOUTS:
        memory = numbers(rng, start + 2 * 5 * 3 * 19, dtype=dtype)
        rotate = partial(RoPE(layout=layout).rotate, positions=POSITIONS)
        made = backend.make(memory)
        rows, x = (y[start:].reshape(2, 5, 3, 19)[..., :16] for y in (made, memory))
        expected = truth(rotate, x)
        compare(backend, rotate(rows), expected)
        rotate(rows, out=rows)
        x[...] = expected
        compare(backend, made, memory)


# What is rotated of 32 components or of all, and weighted, and the first of the weights in memory.
NORMS = [(32, 0, 32, 1), (32, 0, 32, 2), (16, 4, 16, 4), (32, 0, 0, 0), (16, 4, 32, 2)]
NORMS += [(16, -16, 0, 0), (96, 0, 96, 1), (256, 0, 256, 4)]


@kernels("cuda", "triton", of_cuda=pytest.mark.slow)  # which has all kernels compiled once more
@every_layout
@pytest.mark.parametrize(("rotary_dim", "offset", "weights", "start"), NORMS)
def test_norms_are_within_two_ulp(backend, rotary_dim, offset, weights, start, layout, rng):
    """Of calls that are cached too: new, again, in place, and into slots; by keys of their own."""
    is_cuda = backend.path == "cuda"
    head_dim = max(rotary_dim, 32)
    if is_cuda and rotary_dim != (weights or head_dim):
        pytest.skip("its kernel normalizes what is rotated")
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
    slots = np.arange(10)[::-1].reshape(2, 5).copy()
    for i, dtype in enumerate(backend.floats):
        computed = np.dtype("float64" if dtype == "float64" else "float32")
        q, k = (sample(rng, 2, 5, heads, head_dim, dtype=dtype) for heads in (3, 1))
        memory = sample(rng, start + 2 * weights, dtype=dtype if is_cuda else backend.floats[-i])
        host, made = (m[start:].reshape(2, weights) for m in (memory, backend.make(memory)))
        norms = [QKNorm(*(w if weights else ()), offset=float(i % 2)) for w in (host, made)]
        own = {"k_positions": POSITIONS // 2} if start == 1 and not is_cuda else {}
        wide = [x.astype(computed) for x in (q, k)]
        expected = truth(rope.apply, *wide, POSITIONS, norm=norms[0], **own)
        own = {name: backend.make(x) for name, x in own.items()}
        for kind in ("new", "new", "in place", "slots"):
            x, y, cache = map(backend.make, (q, k, np.zeros((10, 1, head_dim), k.dtype)))
            out = {"new": None, "in place": (x, y), "slots": (None, cache)}[kind]
            more = own | ({"slots": backend.make(slots)} if kind == "slots" else {})
            got = rope.apply(x, y, backend.make(POSITIONS), norm=norms[1], out=out, **more)
            q_out, k_out = map(backend.back, got)
            for z, e in (
                (q_out, expected[0]),
                (k_out[slots] if more != own else k_out, expected[1]),
            ):
                # Sums in another order move the factor by an ulp at most, and products round: 2
                # ulp of a pair, so of the head's largest component. Then 16 bits are rounded, or
                # truncated by the interpreter.
                bound = 2 * np.finfo(computed).eps * np.abs(e).max(-1, keepdims=True)
                if computed.itemsize > z.dtype.itemsize:
                    limits = ml_dtypes.finfo(z.dtype)
                    bound = bound + np.abs(e) * float(limits.eps) + float(limits.tiny)
                assert z.dtype == q.dtype
                assert (np.abs(z.astype(computed) - e) <= bound).all()


CACHES = list_caches(24)


@every_kernel
@pytest.mark.parametrize("names", CACHES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd"])
def test_apply_writes_keys_to_slots_in_the_same_launch(
    backend, names, axes, launches, rng, monkeypatch
):
    """To padding, beyond the cache and below zero nothing goes."""
    last, limit = (1, 9) if names is not None and "b" in names else (15, 16)
    for i, dtype in enumerate(backend.floats):
        width = (24, 16)[i % 2]
        rope = RoPE(layout=LAYOUTS[i % 3], rotary_dim=width, rotary_offset=-width)
        apply = partial(rope.apply, axes=axes, cache_axes=names)
        shapes = [(2, 5, n, 24) if axes == "bshd" else (2, n, 5, 24) for n in (4, 2)]
        q, k, cache = (numbers(rng, *s, dtype=dtype) for s in (*shapes, CACHES[names]))
        slots = np.array([[5, -1, 2, 0, 7], [3, 8, -1, last, 4]], ("i4", "i8")[i % 2])
        keys, below, beyond = cache.copy(), slots.copy(), slots.copy()
        below[slots < 0], beyond[slots < 0] = (-7, 1 << 20), (limit, -(1 << 20))
        rotated, _ = truth(apply, q, k, POSITIONS, slots=slots, out=(None, keys))
        with monkeypatch.context() as patch:
            hide_values(backend, patch)
            for n, given in enumerate((slots, slots, below, beyond)):
                if n > 1 and dtype != "float64":  # a call like the first
                    patch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("planned again"))
                x, y, at, where, made = map(backend.make, (q, k, POSITIONS, given, cache))
                out = backend.make(q) if n == 1 else None
                got = apply(x, y, at, slots=where, out=(out, made))
                assert got[1] is made
                assert out is None or got[0] is out
                compare(backend, (got[0], made), (rotated, keys))
    assert len(launches) == 4 * len(backend.floats)


@every_kernel
@pytest.mark.parametrize("tokens", [5, 1, 8])
@every_layout
def test_keys_with_positions_of_their_own_take_the_same_launch(
    backend, layout, tokens, launches, rng
):
    rope, images = RoPE(layout=layout), RoPE(layout=layout, position_axes=(0, 1, 2, 1, 0, 0) * 2)
    angles = partial(rope_xp.apply_angles, layout=layout)
    slots = np.arange(2 * tokens).reshape(2, tokens)[:, ::-1].copy()
    for i, dtype in enumerate(backend.floats):
        q, k = (numbers(rng, 2, n, h, 24, dtype=dtype) for n, h in ((5, 3), (tokens, 2)))
        cache = numbers(rng, 16, 2, 24, dtype=dtype)
        own = rng.integers(0, 1 << 31, (2, tokens) if i % 2 else tokens)
        given = {"angles": sample(rng, 5, 12), "k_angles": sample(rng, tokens, 12)}
        plain = {"positions": POSITIONS, "k_positions": own}
        places = (rng.integers(0, 1 << 31, (3, 2, n)) for n in (5, tokens))
        three = dict(zip(plain, places, strict=True))
        calls = [(rope.apply, plain, k), (rope.apply, plain | {"slots": slots}, cache)]
        calls += [(images.apply, three, k)] if dtype != "float64" else []
        calls += [(angles, given, k)] if backend.module != "cupy" else []
        for call, options, of_k in calls:
            launches.clear()
            made = {name: backend.make(x) for name, x in options.items()}
            expected = truth(call, q, k, **options, out=(np.zeros_like(q), of_k.copy()))
            if call is angles:  # whose cosines are those of its library
                expected = truth(call, *map(backend.make, (q, k)), **made)
                expected = tuple(map(backend.back, expected))
            for in_place in (False, True):
                x, y, keys = map(backend.make, (q, k, of_k))
                out = (x, y) if in_place and of_k is k else (backend.make(q), keys)
                compare(backend, call(x, y, **made, out=out), expected)
            assert len(launches) == (4 if backend.path == "cuda" else 2)


@every_kernel
@every_layout
def test_tables_of_16_bits_are_read_as_they_lie(backend, layout, launches, rng, monkeypatch):
    for dtype in ("float16", "bfloat16"):
        cos, sin = (t.astype(numpy_dtype(dtype)) for t in RoPE().cos_sin(POSITIONS, 24))
        host = RoPE(layout=layout).with_tables(cos, sin)
        made = RoPE(layout=layout).with_tables(backend.make(cos), backend.make(sin))
        for x in (numbers(rng, 2, 5, 3, 24, dtype=dtype), numbers(rng, 2, 5, 3, 24)):
            for call, right in ((made.rotate, host.rotate), (made.unrotate, host.unrotate)):
                for _ in range(3):
                    compare(backend, call(backend.make(x)), truth(right, x))
    assert len(launches) == 24
    monkeypatch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("planned again"))
    made.rotate(backend.make(x))


@kernels("triton")
def test_positions_out_of_range_give_nan(backend, rng, monkeypatch):
    """As on a GPU, where nobody reads them before the kernel does."""
    hide_values(backend, monkeypatch)
    top, x = 1 << 31, numbers(rng, 5, 3, 8)
    outside = np.array([top, -top, top << 20, (1 << 63) - 1, -(1 << 63)])
    for positions in (outside, np.full(5, -top, np.int32), np.sign(outside) * (top - 1)):
        got = backend.back(RoPE().rotate(backend.make(x), backend.make(positions)))
        assert np.isnan(got).all() == (abs(positions[0].item()) >= top)
        assert np.isnan(got).any() == (abs(positions[0].item()) >= top)


@every_kernel
def test_components_of_batch_axes_that_do_not_collapse_equal_the_portable_path(backend, rng):
    images, x = rng.integers(0, 1 << 31, (3, 4, 2, 5)), numbers(rng, 4, 2, 5, 3, 12)
    rope = RoPE(position_axes=(0, 1, 2, 2, 1, 0))
    check(backend, partial(rope.rotate, positions=images, axes="xbshd"), x)
    swapped = images.swapaxes(1, 2), x.swapaxes(0, 1)
    check(backend, partial(rope.rotate, positions=swapped[0], axes="bxshd"), swapped[1])
