"""Kernels on numpy's arrays: numpy's bits, memory as it comes, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracles
import pytest
from rope_xp_backends.cpu import launch
from rope_xp_backends.cpu import threads as _threads
from rope_xp_backends.numpy import chunks
from targets import TARGETS, lent, missing, numpy_dtype, truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)
LAYOUTS = ("half", "interleaved", "interleaved_to_half")


@pytest.fixture(params=["numba", "chunked"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "numba":
        pytest.importorskip("numba")
    with rope_xp.use_backend(request.param):
        yield request.param


@pytest.fixture(params=["numba", "chunked", "cuda"])
def any_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the kernel for GPUs too, which tests/cuda_on_cpu.py runs on the CPU."""
    (target,) = [t for t in TARGETS if t.name == f"numpy-{request.param}"]
    if reason := missing(target):
        pytest.skip(reason)
    with lent(target.lent), rope_xp.use_backend(request.param):
        yield request.param


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the number of threads, and have small arrays keep them all busy."""
    monkeypatch.setattr(launch, "BYTES_A_THREAD", 1)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 10)

    def use(number: str) -> None:
        monkeypatch.setenv("ROPE_XP_NUM_THREADS", number)
        _threads.limit.cache_clear()
        _threads._forget()

    yield use
    _threads.limit.cache_clear()
    _threads._forget()


def sample(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Require the same bits, of a NaN only that it is one."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(~np.isnan(got), number)
    bits = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[number], expected.view(bits)[number])


# Infinity times zero is among them.
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("pairs", [32, 1])  # whole vectors, and what is left beside them
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_numbers_of_16_bits(any_path: str, dtype: str, pairs: int, layout: str) -> None:
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
def test_sizes_that_fill_no_vector_and_no_block(
    any_path: str, dtype: str, layout: str, rng: np.random.Generator
) -> None:
    for rotary_dim in (2, 6, 34, 80):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=1)
        x = sample(rng, 2, 130, 3, rotary_dim + 4, dtype=dtype)
        for turn in (rope.rotate, rope.unrotate):
            expected = truth(turn, x, POSITIONS)
            same(turn(x, POSITIONS), expected)
            y = x.copy()
            turn(y, POSITIONS, out=y)
            same(y, expected)


@pytest.mark.parametrize("shape", [(4, 2, 130), (1, 2, 130), (4, 1, 130), (4, 2, 1), (130,)])
def test_two_batch_axes_and_positions_of_their_own(
    any_path: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    positions = rng.integers(0, 1 << 20, shape)
    q, k = sample(rng, 4, 2, 130, 3, 8), sample(rng, 4, 2, 130, 1, 8)
    for axes in ("xbshd", "sxhbd"):
        order = ["xbshd".index(name) for name in axes]
        views = [x.transpose(order) for x in (q, k)]
        expected = truth(rope_xp.apply, *views, positions, axes=axes)
        for got, e in zip(rope_xp.apply(*views, positions, axes=axes), expected, strict=True):
            same(got, e)


VIEWS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
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
def test_views(any_path: str, view: str, dtype: str, rng: np.random.Generator) -> None:
    """Those of :func:`numpy.broadcast_to` are read-only besides."""
    axes, make = VIEWS[view]
    for layout in LAYOUTS:
        x, rope = make(sample(rng, 2, 130, 3, 16, dtype=dtype)), RoPE(layout=layout)
        before = x.copy()
        same(rope.rotate(x, POSITIONS, axes=axes), truth(rope.rotate, before, POSITIONS, axes=axes))
        same(x, before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fused_projection_in_place(any_path: str, layout: str, rng: np.random.Generator) -> None:
    qkv, rope = sample(rng, 2, 130, 3, 4, 16), RoPE(layout=layout, rotary_dim=6)
    expected, q, k = qkv.copy(), qkv[:, :, 0], qkv[:, :, 1]
    expected[:, :, 0], expected[:, :, 1] = truth(rope.apply, q.copy(), k.copy(), POSITIONS)
    rope.apply(q, k, POSITIONS, out=(q, k))
    same(qkv, expected)


class Own(np.ndarray):
    """An array of somebody's own class."""


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(1) + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


OTHER: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "every second component": ("not contiguous", "chunked", lambda x: x[..., ::2]),
    "components backwards": ("not contiguous", "chunked", lambda x: x[..., ::-1]),
    "Fortran order": ("not contiguous", "chunked", np.asfortranarray),
    "byte order": ("byte order", "chunked", lambda x: x.astype(x.dtype.newbyteorder())),
    "unaligned": ("not aligned", "chunked", unaligned),
    "file": ("memmap is a class", "portable", lambda x: x.view(np.memmap)),
    "class": ("Own is a class", "portable", lambda x: x.view(Own)),
}


@pytest.mark.parametrize("kind", OTHER)
def test_memory_that_no_kernel_reads(kind: str, rng: np.random.Generator) -> None:
    pytest.importorskip("numba")
    reason, path, make = OTHER[kind]
    x = make(sample(rng, 2, 130, 3, 16))
    expected = truth(RoPE().rotate, np.array(x, np.float32, order="C"), POSITIONS)
    with rope_xp.use_backend("numba"), pytest.raises(RopeError, match=reason):
        RoPE().rotate(x, POSITIONS)
    assert rope_xp.explain(x, x, POSITIONS).path == path
    got = RoPE().rotate(x, POSITIONS)
    assert got.dtype == x.dtype
    same(np.asarray(got, np.float32), expected)
    RoPE().rotate(x, POSITIONS, out=x)
    same(np.array(x, np.float32), expected)


@pytest.mark.parametrize("kind", [*list(OTHER)[2:], "tokens backwards", "every second token"])
def test_angles_in_any_memory(any_path: str, kind: str, rng: np.random.Generator) -> None:
    make = {
        "tokens backwards": lambda a: a[::-1].copy()[::-1],
        "every second token": lambda a: np.repeat(a, 2, axis=0)[::2],
    }.get(kind) or OTHER[kind][2]
    x, angles = sample(rng, 2, 130, 3, 16), RoPE().cos_sin(POSITIONS, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    same(RoPE().rotate(x, make(POSITIONS)), expected)
    same(rope_xp.apply_tables(x, *map(make, angles)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("view", [v for v in VIEWS if "for all" not in v])
def test_complex_products_where_asked_for(
    view: str, dtype: str, threads: Callable[[str], None], rng: np.random.Generator
) -> None:
    threads("3")
    axes, make = VIEWS[view]
    x = make(sample(rng, 2, 130, 3, 16, dtype=dtype))
    rope = RoPE(rotary_dim=8, rotary_offset=1)
    for turn in (rope.rotate, rope.unrotate):
        expected = truth(turn, x, POSITIONS, axes=axes)
        with rope_xp.use_backend("complex"):
            results = [turn(x, POSITIONS, axes=axes), x.copy()]
            turn(results[1], POSITIONS, axes=axes, out=results[1])
        for got in results:
            # numpy fuses multiply-add where the processor can, which changes one rounding.
            assert oracles.ulps(got[..., 1:9], expected[..., 1:9], x[..., 1:9], "interleaved") <= 2
            same(got[..., 9:].copy(), expected[..., 9:].copy())
            same(got[..., :1].copy(), expected[..., :1].copy())


def test_complex_products_are_never_taken_unasked(rng: np.random.Generator) -> None:
    x = sample(rng, 3, 2, 8)
    assert rope_xp.explain(x, x).path != "complex"
    with rope_xp.use_backend("complex"):
        assert rope_xp.explain(x, x).path == "complex"
        with pytest.raises(RopeError, match="the layout is 'half'"):
            RoPE(layout="half").rotate(x)
        with pytest.raises(RopeError, match="no complex numbers of two float16"):
            RoPE().rotate(x.astype(np.float16))


def test_positions_out_of_range_give_nan() -> None:
    pytest.importorskip("numba")
    torch = pytest.importorskip("torch")
    outside, inside = [1 << 31, -(1 << 31), -(1 << 63), 1 << 62], [(1 << 31) - 1, 0, -5, 7]
    with rope_xp.use_backend("numba"):
        got = RoPE().rotate(torch.ones(8, 2, 8), torch.tensor([outside, inside]).T.reshape(8))
    assert got[::2].isnan().all()
    same(got[1::2].numpy(), truth(RoPE().rotate, np.ones((4, 2, 8), np.float32), inside))


@pytest.mark.parametrize("number", ["1", "2", "3", "7"])
def test_any_number_of_threads(
    path: str, number: str, threads: Callable[[str], None], rng: np.random.Generator
) -> None:
    threads(number)
    for dtype in ("float32", "bfloat16"):
        q, k = sample(rng, 2, 130, 4, 16, dtype=dtype), sample(rng, 2, 130, 1, 16, dtype=dtype)
        expected = truth(rope_xp.apply, q, k, POSITIONS)
        for got, e in zip(rope_xp.apply(q, k, POSITIONS), expected, strict=True):
            same(got, e)
    workers = 0 if _threads._pool is None else _threads._pool._max_workers
    assert workers == int(number) - 1


def test_callers_in_eight_threads(path: str, threads: Callable[[str], None]) -> None:
    threads("3")
    start = threading.Barrier(8)

    def call(seed: int) -> tuple[np.ndarray, np.ndarray]:
        x = sample(np.random.default_rng(seed), 2, 130, 4, 16)
        start.wait(20)
        with rope_xp.use_backend(path):
            return x, [RoPE().rotate(x, POSITIONS) for _ in range(20)][-1]

    with ThreadPoolExecutor(8) as pool:
        for x, got in pool.map(call, range(8)):
            same(got, truth(RoPE().rotate, x, POSITIONS))


@pytest.mark.parametrize("broken", [0, 3])  # in a worker, in the thread that calls
def test_an_exception_comes_after_all_work(broken: int, threads: Callable[[str], None]) -> None:
    threads("4")
    done = []

    def work(start: int, stop: int) -> None:
        if start == broken:
            raise KeyError(start)
        time.sleep(0.1)
        done.append(start)

    with pytest.raises(KeyError, match=str(broken)):
        _threads.share(work, 4, 4)
    assert sorted(done) == [n for n in range(4) if n != broken]


def test_threads_obey_the_errstate_of_the_caller(threads: Callable[[str], None]) -> None:
    threads("3")
    x = np.full((2, 130, 4, 16), np.inf, np.float32)
    with rope_xp.use_backend("chunked"):
        with np.errstate(invalid="ignore"):
            RoPE().rotate(x, POSITIONS)
        with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
            RoPE().rotate(x, POSITIONS)


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5", " "])
def test_a_number_of_threads_that_is_none(
    path: str, number: str, threads: Callable[[str], None]
) -> None:
    threads(number)
    with pytest.raises(RopeError, match="ROPE_XP_NUM_THREADS is .*whole number"):
        RoPE().rotate(np.ones((3, 2, 8), np.float32))
