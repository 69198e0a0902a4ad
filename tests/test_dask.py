"""dask: chunks, the size of the graph, positions of every kind. The rest is tested with others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from targets import ALL_FLOATS, numpy_dtype

import rope_xp
from rope_xp import RoPE, RopeError

dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is installed without its arrays")

RULE = rope_xp.scaling.YaRN(4.0, 64)
ROPES = {
    "half": RoPE(layout="half"),
    "slice": RoPE(rotary_dim=6, rotary_offset=-7, base=5e5),
    "scaled": RoPE(layout="interleaved_to_half", scaling=RULE),
}
CHUNKS = [
    ((2,), (9,), (4,), (8,)),
    ((1, 1), (2, 4, 3), (3, 1), (8,)),
    ((2,), (1,) * 9, (1, 1, 2), (3, 5)),
]


def sample(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))


def equal(lazy: da.Array, expected: np.ndarray) -> None:
    assert isinstance(lazy, da.Array)
    assert (lazy.dtype, lazy.shape) == (expected.dtype, expected.shape)
    got = lazy.compute(scheduler="synchronous")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


def tasks(*arrays: da.Array) -> int:
    return len({key for x in arrays for key in dict(x.__dask_graph__())})


@pytest.fixture
def no_computing():
    """Make every computation an error."""

    def refuse(*_, **__):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_every_operation_keeps_chunks_and_bits(chunks, rope: RoPE) -> None:
    x, p = sample(2, 9, 4, 8), np.arange(9) * 1000 + 5
    lazy = da.from_array(x, chunks=chunks)
    rotated = rope.rotate(x, p)
    made = {
        "rotate": (rope.rotate(lazy, p), rotated),
        "unrotate": (rope.unrotate(lazy, p), rope.unrotate(x, p)),
        "rerotate": (rope.rerotate(lazy, p, p[::-1]), rope.rerotate(x, p, p[::-1])),
        "from zero": (rope.rerotate(lazy, None, p), rope.rerotate(x, None, p)),
    }
    for got, expected in made.values():
        assert got.chunks == (*chunks[:-1], (8,))
        equal(got, expected)


@pytest.mark.parametrize("dtype", ALL_FLOATS)
def test_large_blocks_run_the_compiled_kernels(dtype: str) -> None:
    """Blocks take numpy's fast path, whose kernels are compiled here if they were not."""
    pytest.importorskip("numba", reason="numba is not installed")
    x = sample(1, 24, 2, 16, dtype=dtype)
    lazy = da.from_array(x, chunks=(1, 7, 1, 16))
    with rope_xp.use_backend("numba"):
        RoPE().rotate(x)
    assert rope_xp.explain(x, x).path == "numba"
    floats = np.linspace(-3.5, 90_000.25, 24)
    for p in (None, np.arange(24), np.arange(24, dtype=np.int32), floats):
        lazy_positions = p if p is None else da.from_array(p, chunks=5)
        for given in (p, lazy_positions):
            equal(RoPE().rotate(lazy, given), RoPE().rotate(x, p))


AXES = [("bhsd", (2, 4, 9, 8)), ("sbhd", (9, 2, 4, 8)), ("sxhbd", (9, 2, 3, 2, 8)), ("sd", (9, 8))]


@pytest.mark.parametrize(("axes", "shape"), AXES)
def test_axes_and_batched_positions(axes: str, shape: tuple[int, ...]) -> None:
    x = sample(*shape)
    lazy = da.from_array(x, chunks=tuple(max(n // 2, 1) for n in shape))
    batch = [n for n, name in zip(shape, axes, strict=True) if name not in "shd"]
    full = np.random.default_rng(1).integers(0, 1 << 30, (*batch, 9))
    for p in (full, full[..., :1], full[:1], full + 0.25) if batch else (full, full + 0.25):
        expected = RoPE().rotate(x, p, axes=axes)
        equal(RoPE().rotate(lazy, p, axes=axes), expected)
        for chunks in (-1, 2):
            equal(RoPE().rotate(lazy, da.from_array(p, chunks=chunks), axes=axes), expected)


def test_position_components() -> None:
    rope = RoPE(position_axes=(0, 1, 2, 0))
    x, p = sample(2, 9, 4, 8), np.random.default_rng(1).integers(0, 5000, (3, 2, 9))
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    for given in (p, da.from_array(p, chunks=2), p / 7, da.from_array(p / 7, chunks=(1, 2, 5))):
        host = given.compute() if isinstance(given, da.Array) else given
        equal(rope.rotate(lazy, given), rope.rotate(x, host))
        for got, expected in zip(rope.cos_sin(given, 8), rope.cos_sin(host, 8), strict=True):
            np.testing.assert_array_equal(np.asarray(got), expected)
    equal(rope.rotate(lazy), rope.rotate(x))
    equal(rope.rotate(lazy, p[:, 0]), rope.rotate(x, p[:, 0]))


def test_grouped_heads_and_keys_of_their_own() -> None:
    q, k = sample(2, 3, 4, 8), sample(2, 7, 2, 8, dtype="float64")
    p, kp = [100, 101, 102], np.arange(96, 103)
    lazy = da.from_array(q, chunks=(1, 2, 3, 8)), da.from_array(k, chunks=(2, 3, 1, 8))
    for given in (kp, da.from_array(kp, chunks=4)):
        got = rope_xp.apply(*lazy, p, k_positions=given)
        for g, e in zip(got, rope_xp.apply(q, k, p, k_positions=kp), strict=True):
            equal(g, e)


def test_tables_of_the_caller() -> None:
    x, cos_sin = sample(2, 9, 4, 8), RoPE(rotary_dim=6).cos_sin(np.arange(18).reshape(2, 9), 8)
    lazy = da.from_array(x, chunks=(1, 4, 2, 5))
    expected = rope_xp.apply_tables(x, *cos_sin)
    equal(rope_xp.apply_tables(lazy, *cos_sin), expected)
    equal(rope_xp.apply_tables(lazy, *(da.from_array(t, chunks=2) for t in cos_sin)), expected)


@pytest.mark.parametrize("kind", ["int32", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("wide", [False, True])
def test_tables_of_lazy_positions(kind: str, wide: bool) -> None:
    p = np.arange(30).reshape(2, 15).astype(kind)
    lazy = da.from_array(p, chunks=(1, 4))
    dtype = np.float64 if wide else None
    for got, expected in zip(
        RoPE().cos_sin(lazy, 8, dtype=dtype), RoPE().cos_sin(p, 8, dtype=dtype), strict=True
    ):
        assert got.chunks == (*lazy.chunks, (4,))
        equal(got, expected)


# --- the graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [(8,), (5, 3)])
def test_few_tasks_a_block_and_nothing_is_computed(no_computing, head_dim) -> None:
    lazy = da.ones((2, 40, 4, 8), chunks=((1, 1), (7,) * 5 + (5,), (3, 1), head_dim))
    blocks = 2 * 6 * 2
    kinds = (
        None,
        np.arange(40),
        list(range(40)),
        np.arange(40) / 3,
        da.arange(40, chunks=7),
        da.arange(40, chunks=11),
        da.linspace(0, 1, 40, chunks=7),
        da.zeros((2, 40), chunks=(1, 7), dtype=np.uint32),
    )
    for p in kinds:
        # Blocks come from a task each: what is counted is what rotating adds, for q and for k.
        new = tasks(*rope_xp.apply(lazy, lazy[..., :2, :], p)) - tasks(lazy, lazy[..., :2, :])
        merged = blocks * len(head_dim) // 2  # tasks that make head_dim whole, one a block
        assert new <= 6 * (blocks + blocks // 2) + merged
        assert tasks(RoPE().rotate(lazy, p)) <= (6 + len(head_dim) - 1) * blocks


def test_the_plainest_call_adds_one_task_a_block() -> None:
    lazy = da.ones((4, 40, 4, 8), chunks=(1, 10, 2, 8))
    assert tasks(RoPE().rotate(lazy)) == tasks(lazy) + 32 + 4  # and one for each chunk of tokens
    x = dask.optimize(RoPE().rotate(lazy, da.zeros((4, 40), chunks=(1, 10), dtype=int)))[0]
    assert tasks(x) <= 2 * 32


def test_equal_calls_have_equal_names_and_others_have_not() -> None:
    lazy = da.ones((2, 9, 4, 8), chunks=(1, 3, 4, 8))
    names = [
        RoPE(base=base).rotate(lazy, p).name for base in (1e4, 1e5) for p in (None, [3] * 9, None)
    ]
    assert len(set(names)) == 4
    assert names[0] == names[2]
    assert names[0].startswith("rope-")


def test_what_travels_is_small() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    lazy = da.ones((1, 4096, 4, 128), chunks=(1, 32, 4, 128))
    rope = RoPE(base=76_543.0, scaling=RULE)
    before = rope_xp._angles.host_tables.cache_info()
    got = rope.rotate(lazy)
    assert rope_xp._angles.host_tables.cache_info() == before
    (function,) = {
        layer.dsk if not hasattr(layer, "task") else layer.task.func
        for name, layer in got.dask.layers.items()
        if name == got.name
    }
    assert len(pickle.dumps(function)) < 1000
    assert pickle.loads(pickle.dumps(function)) == function
    assert len(cloudpickle.dumps(dict(dask.optimize(got)[0].__dask_graph__()))) < 128 * 1000


def test_tables_of_one_position() -> None:
    for at in (5, 5.5):
        lazy = RoPE().cos_sin(da.asarray(np.array(at)), 8)
        for found, expected in zip(lazy, RoPE().cos_sin(at, 8), strict=True):
            np.testing.assert_array_equal(found.compute(), expected)


def test_blocks_of_another_library_than_their_positions() -> None:
    """Positions of numpy follow a block to where it lies: cupy's in earnest, torch's here."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from rope_xp_backends.dask.blocks import Recipe, Source, Turn

    x = sample(2, 9, 4, 8)
    source = Source(Recipe(RoPE(), 8, False, False), rope_xp._angles.UNKNOWN, 1.0, 0, False, False)
    turn = Turn("bshd", "interleaved", 8, 0, False, (source,), ((1,),))
    got = turn(torch.from_numpy(x), np.arange(9))
    np.testing.assert_array_equal(got.numpy(), RoPE().rotate(x))
    with pytest.raises(TypeError, match="a block is a numpy array and its positions a torch array"):
        turn(x, torch.arange(9))


def test_the_path_is_told_and_can_be_asked_for() -> None:
    x = sample(2, 9, 4, 8)
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    assert str(rope_xp.explain(lazy, lazy)) == "dask: blockwise"
    expected = RoPE().rotate(x)
    with rope_xp.use_backend("blockwise"):
        equal(RoPE().rotate(lazy), expected)
        with pytest.raises(RopeError, match="numpy arrays have none of that name"):
            RoPE().rotate(x)


def test_positions_may_change_after_the_call() -> None:
    x, p = sample(2, 9, 4, 8), np.arange(9, dtype=np.int32)
    lazy = RoPE().rotate(da.from_array(x, chunks=3), p)
    p += 1
    equal(lazy, RoPE().rotate(x))


def test_bad_numbers_are_told_at_once() -> None:
    lazy = da.ones((2, 9, 4, 8), dtype=np.float32)
    with pytest.raises(RopeError, match="for_length"):
        RoPE(scaling=rope_xp.scaling.DynamicNTK(2.0, 64)).rotate(lazy)
    with pytest.raises(RopeError, match="modulus below"):
        RoPE().rotate(lazy, np.arange(9) + (1 << 31))
    assert np.isnan(RoPE().rotate(lazy, da.arange(9) + (1 << 31)).compute()).all()


# --- what is refused -----------------------------------------------------------------------------


def test_refusals() -> None:
    x = sample(2, 9, 4, 8)
    lazy = da.from_array(x, chunks=3)
    with pytest.raises(TypeError, match="q is a dask array and k a numpy array"):
        rope_xp.apply(lazy, x)
    with pytest.raises(TypeError, match="to rotate is a numpy array and positions a dask"):
        RoPE().rotate(x, da.arange(9))
    with pytest.raises(TypeError, match="out= with dask arrays: .*no memory to write to"):
        rope_xp.apply(lazy, lazy, out=(lazy, lazy))
    with pytest.raises(TypeError, match="q is a dask array .* int64.*Convert it"):
        rope_xp.apply(da.ones((2, 9, 4, 8), dtype=int), lazy)
    masked = RoPE().rotate(da.ma.masked_array(x, x > 0))
    with pytest.raises(TypeError, match="not those of an ndarray"):
        masked.compute(scheduler="synchronous")


def unknown(x: np.ndarray, axis: int) -> da.Array:
    """Return x in two chunks along an axis, whose lengths dask does not know."""
    lazy = da.from_array(x, chunks=tuple(5 if i == axis else n for i, n in enumerate(x.shape)))
    return lazy[
        tuple(da.ones(n, chunks=5) > 0 if i == axis else slice(None) for i, n in enumerate(x.shape))
    ]


def test_unknown_lengths_work_where_they_do_not_matter() -> None:
    x, p = sample(9, 9, 9, 8), np.arange(9) * 7
    for axis in (0, 2):
        lazy = unknown(x, axis)
        for given in (None, p, p[None], da.from_array(p, chunks=2)):
            got = RoPE().rotate(lazy, given)
            np.testing.assert_array_equal(
                got.compute(), RoPE().rotate(x, None if given is None else p)
            )
        _, k = rope_xp.apply(lazy, lazy, p)
        np.testing.assert_array_equal(k.compute(), RoPE().rotate(x, p))
    both = np.arange(81).reshape(9, 9)
    for axis, p in ((0, both), (1, both), (1, both[0])):
        lazy = unknown(p, axis if p.ndim == 2 else 0)
        np.testing.assert_array_equal(
            RoPE().rotate(unknown(x, axis), lazy).compute(), RoPE().rotate(x, p)
        )


def test_unknown_lengths_are_refused_where_they_matter() -> None:
    x = sample(9, 9, 9, 8)
    needed = "length is not known.*compute_chunk_sizes"
    with pytest.raises(RopeError, match=needed):
        RoPE().rotate(unknown(x, 1))
    with rope_xp.use_backend("portable"), pytest.raises(RopeError, match=needed):
        RoPE().rotate(unknown(x, 1))
    for p in (np.arange(9), da.arange(9)):
        with pytest.raises(RopeError, match=needed):
            RoPE().rotate(unknown(x, 1), p)
    with pytest.raises(RopeError, match="positions has an axis.*compute_chunk_sizes"):
        RoPE().rotate(da.from_array(x, chunks=3), unknown(np.arange(9), 0))
    with pytest.raises(RopeError, match="q has an axis.*compute_chunk_sizes"):
        rope_xp.apply(unknown(x, 0), da.from_array(x, chunks=3))
    more = da.concatenate([unknown(np.arange(9), 0), da.arange(1)])
    with pytest.raises(RopeError, match="3 chunks along an axis.* has 2.*compute_chunk_sizes"):
        RoPE().rotate(unknown(x, 1), more)
    for rope in (RoPE(), RoPE(rotary_dim=4)):
        with pytest.raises(RopeError, match=needed):
            rope.rotate(unknown(x, 3))
    known = unknown(x, 1)
    known.compute_chunk_sizes()
    equal(RoPE().rotate(known), RoPE().rotate(x))


@pytest.mark.parametrize("tokens", [64, 8192])
def test_blocks_that_turn_out_not_to_fit(tokens: int) -> None:
    """Of unknown lengths: large blocks take kernels, which would read as many as they need."""
    x = da.ones((1, tokens, 2, 64), chunks=(1, tokens // 2, 2, 64), dtype=np.float32)
    at = da.arange(tokens, chunks=tokens // 2)
    some = da.from_array(np.arange(tokens) % 5 > 0, chunks=tokens // 2)
    one = da.from_array(np.arange(tokens) % (tokens // 2) == 3, chunks=tokens // 2)
    rope = RoPE()
    for of_x, of_positions in ((some, at >= 0), (some, one), (one, some)):
        with pytest.raises(RopeError, match="a block of shape .* does not fit"):
            rope.rotate(x[:, of_x], at[of_positions]).compute()
    kept = np.arange(tokens)[np.arange(tokens) % 5 > 0]
    expected = rope.rotate(np.ones((1, len(kept), 2, 64), np.float32), kept)
    np.testing.assert_array_equal(rope.rotate(x[:, some], at[some]).compute(), expected)
