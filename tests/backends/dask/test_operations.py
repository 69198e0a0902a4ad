"""dask: chunks and positions of every kind, tasks, refusals, and chunks of unknown lengths."""

import pickle
from functools import partial

import numpy as np
import pytest
from support import bits
from support.targets import ALL_FLOATS

import rope_xp
from rope_xp import RoPE, RopeError

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array", reason="dask or its arrays are not installed")

sample = partial(bits.sample, np.random.default_rng(0))


def equal(lazy, expected):
    assert isinstance(lazy, da.Array)
    assert (lazy.dtype, lazy.shape) == (expected.dtype, expected.shape)
    bits.same(lazy.compute(scheduler="synchronous"), expected)


ROPES = {
    "half": RoPE(layout="half"),
    "slice": RoPE(rotary_dim=6, rotary_offset=-7, base=5e5),
    "scaled": RoPE(layout="interleaved_to_half", scaling=rope_xp.scaling.YaRN(4.0, 64)),
}
CHUNKS = [
    ((2,), (9,), (4,), (8,)),
    ((1, 1), (2, 4, 3), (3, 1), (8,)),
    ((2,), (1,) * 9, (1, 1, 2), (3, 5)),
]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_every_operation_keeps_chunks_and_bits(chunks, rope):
    x, p = sample(2, 9, 4, 8), np.arange(9) * 1000 + 5
    lazy = da.from_array(x, chunks=chunks)
    for turn in (
        lambda x: rope.rotate(x, p),
        lambda x: rope.unrotate(x, p),
        lambda x: rope.rerotate(x, p, p[::-1]),
        lambda x: rope.rerotate(x, None, p),
    ):
        got = turn(lazy)
        assert got.chunks == (*chunks[:-1], (8,))
        equal(got, turn(x))


@pytest.mark.parametrize("dtype", ALL_FLOATS)
def test_positions_of_every_kind_and_chunk_equal_numpy(dtype):
    x = sample(1, 24, 2, 16, dtype=dtype)
    lazy = da.from_array(x, chunks=(1, 7, 1, 16))
    whole = np.arange(24)
    equal(RoPE().rotate(lazy), RoPE().rotate(x))
    for p in (whole, whole.astype(np.int32), np.linspace(-3.5, 90_000.25, 24)):
        for positions in (p, da.from_array(p, chunks=5)):
            equal(RoPE().rotate(lazy, positions), RoPE().rotate(x, p))


@pytest.mark.parametrize(("axes", "shape"), [("bhsd", (2, 4, 9, 8)), ("sxhbd", (9, 2, 3, 2, 8))])
def test_batched_positions_of_any_chunks_equal_numpy_for_all_axes(axes, shape):
    x = sample(*shape)
    lazy = da.from_array(x, chunks=tuple(max(n // 2, 1) for n in shape))
    batch = [n for n, name in zip(shape, axes, strict=True) if name not in "shd"]
    full = np.random.default_rng(1).integers(0, 1 << 30, (*batch, 9))
    for p in (full, full[..., :1], full[:1], full + 0.25):
        expected = RoPE().rotate(x, p, axes=axes)
        for given in (p, da.from_array(p), da.from_array(p, chunks=2)):
            equal(RoPE().rotate(lazy, given, axes=axes), expected)


def test_position_components_of_any_chunks_equal_numpy():
    rope = RoPE(position_axes=(0, 1, 2, 0))
    x, p = sample(2, 9, 4, 8), np.random.default_rng(1).integers(0, 5000, (3, 2, 9))
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    for host, chunks in ((p, 2), (p / 7, (1, 2, 5))):
        for given in (host, da.from_array(host, chunks=chunks)):
            equal(rope.rotate(lazy, given), rope.rotate(x, host))
            np.testing.assert_array_equal(rope.cos_sin(given, 8), rope.cos_sin(host, 8))
    equal(rope.rotate(lazy), rope.rotate(x))
    equal(rope.rotate(lazy, p[:, 0]), rope.rotate(x, p[:, 0]))


def test_tables_of_any_chunks_equal_numpy():
    x, cos_sin = sample(2, 9, 4, 8), RoPE(rotary_dim=6).cos_sin(np.arange(18).reshape(2, 9), 8)
    lazy = da.from_array(x, chunks=(1, 4, 2, 5))
    expected = rope_xp.apply_tables(x, *cos_sin)
    equal(rope_xp.apply_tables(lazy, *cos_sin), expected)
    equal(rope_xp.apply_tables(lazy, *(da.from_array(t, chunks=2) for t in cos_sin)), expected)


@pytest.mark.parametrize(("kind", "wide"), [("int32", False), ("uint64", True), ("float16", True)])
def test_tables_have_the_chunks_of_their_positions(kind, wide):
    p, options = np.arange(30).reshape(2, 15).astype(kind), {"dtype": np.float64 if wide else None}
    for host, chunks in ((p, (1, 4)), (p[1, 4], ())):
        lazy = da.from_array(host, chunks=chunks)
        tables = RoPE().cos_sin(lazy, 8, **options), RoPE().cos_sin(host, 8, **options)
        for got, expected in zip(*tables, strict=True):
            assert got.chunks == (*lazy.chunks, (4,))
            equal(got, expected)


def test_positions_written_to_after_a_call_do_not_matter():
    x, p = sample(2, 9, 4, 8), np.arange(9, dtype=np.int32)
    lazy = RoPE().rotate(da.from_array(x, chunks=3), p)
    p += 1
    equal(lazy, RoPE().rotate(x))


def tasks(*arrays):
    return len({key for x in arrays for key in dict(x.__dask_graph__())})


@pytest.mark.parametrize("head_dim", [(8,), (5, 3)])
def test_a_call_adds_few_tasks_a_block_and_computes_nothing(head_dim):
    lazy = da.ones((2, 40, 4, 8), chunks=((1, 1), (7,) * 5 + (5,), (3, 1), head_dim))
    blocks = 2 * 6 * 2
    assert str(rope_xp.explain(lazy, lazy)) == "dask: blockwise"
    kinds = [None, np.arange(40) / 3, da.arange(40, chunks=11), da.zeros((2, 40), chunks=(1, 7))]
    with dask.config.set(scheduler=lambda *_, **__: pytest.fail("something was computed")):
        for p in kinds:
            new = tasks(*rope_xp.apply(lazy, lazy[..., :2, :], p)) - tasks(lazy, lazy[..., :2, :])
            merged = blocks * len(head_dim) // 2  # tasks that make head_dim whole, one a block
            assert new <= 6 * (blocks + blocks // 2) + merged
            assert tasks(RoPE().rotate(lazy, p)) <= (6 + len(head_dim) - 1) * blocks


def test_graphs_travel_without_tables():
    cloudpickle = pytest.importorskip("cloudpickle")
    lazy = da.ones((1, 4096, 4, 128), chunks=(1, 32, 4, 128))
    rope = RoPE(base=76_543.0, scaling=rope_xp.scaling.YaRN(4.0, 64))
    got = rope.rotate(lazy)
    (function,) = {
        layer.dsk if not hasattr(layer, "task") else layer.task.func
        for name, layer in got.dask.layers.items()
        if name == got.name
    }
    assert len(pickle.dumps(function)) < 1000
    assert repr(pickle.loads(pickle.dumps(function))) == repr(function)
    assert len(cloudpickle.dumps(dict(dask.optimize(got)[0].__dask_graph__()))) < 128 * 1000


def test_mixed_libraries_out_and_masked_blocks_are_refused():
    x = sample(2, 9, 4, 8)
    lazy = da.from_array(x, chunks=3)
    masked = da.ma.masked_array(x, x > 0)
    for message, call in (
        ("is a numpy array and positions a dask", lambda: RoPE().rotate(x, da.arange(9))),
        ("dask arrays: .*no memory to write to", lambda: RoPE().rotate(lazy, out=lazy)),
        ("not those of an ndarray", lambda: equal(RoPE().rotate(masked), x)),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def unknown(x, axis):
    """Return x in two chunks along an axis, whose lengths dask does not know."""
    lazy = da.from_array(x, chunks=tuple(5 if i == axis else n for i, n in enumerate(x.shape)))
    return lazy[(*(slice(None),) * axis, da.ones(x.shape[axis], chunks=5) > 0)]


def test_chunks_of_unknown_lengths_are_rotated_where_lengths_do_not_matter():
    x, p = sample(9, 9, 9, 8), np.arange(9) * 7
    for axis in (0, 2):
        lazy = unknown(x, axis)
        for given in (None, p, p[None], da.from_array(p, chunks=2)):
            expected = RoPE().rotate(x, None if given is None else p)
            np.testing.assert_array_equal(RoPE().rotate(lazy, given).compute(), expected)
        _, k = rope_xp.apply(lazy, lazy, p)
        np.testing.assert_array_equal(k.compute(), RoPE().rotate(x, p))
    both = np.arange(81).reshape(9, 9)
    for axis, p in ((0, both), (1, both), (1, both[0])):
        got = RoPE().rotate(unknown(x, axis), unknown(p, axis if p.ndim == 2 else 0))
        np.testing.assert_array_equal(got.compute(), RoPE().rotate(x, p))


def test_chunks_of_unknown_lengths_are_refused_where_lengths_matter():
    x = sample(9, 9, 9, 8)
    needed = "unknown length.*compute_chunk_sizes"
    for path, p in ((None, None), ("portable", None), (None, np.arange(9)), (None, da.arange(9))):
        with rope_xp.use_path(path), pytest.raises(RopeError, match=needed):
            RoPE().rotate(unknown(x, 1), p)
    lazy, at = da.from_array(x, chunks=3), unknown(np.arange(9), 0)
    more = da.concatenate([at, da.arange(1)])
    for message, call in (
        ("positions has an axis", lambda: RoPE().rotate(lazy, at)),
        ("q has an axis", lambda: rope_xp.apply(unknown(x, 0), lazy)),
        ("3 chunks along an axis.* has 2", lambda: RoPE().rotate(unknown(x, 1), more)),
        ("unknown length", lambda: RoPE().rotate(unknown(x, 3))),
        ("unknown length", lambda: RoPE(rotary_dim=4).rotate(unknown(x, 3))),
    ):
        with pytest.raises(RopeError, match=f"{message}.*compute_chunk_sizes"):
            call()
    known = unknown(x, 1)
    known.compute_chunk_sizes()
    equal(RoPE().rotate(known), RoPE().rotate(x))


@pytest.mark.parametrize("tokens", [64, 8192])
def test_blocks_that_do_not_fit_their_positions_raise_when_computed(tokens):
    """Of unknown lengths: large blocks take kernels, which would read as many as they need."""
    x = da.ones((1, tokens, 2, 64), chunks=(1, tokens // 2, 2, 64), dtype=np.float32)
    at = da.arange(tokens, chunks=tokens // 2)
    some = da.from_array(np.arange(tokens) % 5 > 0, chunks=tokens // 2)
    one = da.from_array(np.arange(tokens) % (tokens // 2) == 3, chunks=tokens // 2)
    rope = RoPE()
    for x_mask, mask in ((some, at >= 0), (some, one), (one, some)):
        with pytest.raises(RopeError, match="a block of shape .* does not fit"):
            rope.rotate(x[:, x_mask], at[mask]).compute()
    selected = np.flatnonzero(np.arange(tokens) % 5)
    expected = rope.rotate(np.ones((1, len(selected), 2, 64), np.float32), selected)
    np.testing.assert_array_equal(rope.rotate(x[:, some], at[some]).compute(), expected)
