"""dask: chunks and positions of every kind, tasks, refusals, and chunks of unknown lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits
from support.targets import ALL_FLOATS

import rope_xp
from rope_xp import RoPE, RopeError

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array", reason="dask or its arrays are not installed")


def sample(*shape, dtype="float32"):
    return bits.sample(np.random.default_rng(0), *shape, dtype=dtype)


def equal(lazy, expected):
    assert isinstance(lazy, da.Array)
    assert (lazy.dtype, lazy.shape) == (expected.dtype, expected.shape)
    bits.same(lazy.compute(scheduler="synchronous"), expected)


ROPES = (
    RoPE(layout="half"),
    RoPE(rotary_dim=6, rotary_offset=-7, base=5e5),
    RoPE(layout="interleaved_to_half", scaling=rope_xp.scaling.YaRN(4.0, 64)),
    RoPE(position_axes=(0, 1, 2, 0)),
)
SIZES = {"b": 2, "x": 3, "s": 9, "h": 4, "d": 8}


def chunked(draw, x):
    """Return an array of dask in chunks of any lengths."""
    cuts = [draw(st.sets(st.integers(1, n - 1), max_size=4)) if n > 1 else () for n in x.shape]
    ends = zip(map(sorted, cuts), x.shape, strict=True)
    return da.from_array(x, chunks=tuple(tuple(map(int, np.diff([0, *c, n]))) for c, n in ends))


@st.composite
def calls(draw):
    """Draw a rope, axes, an array, and positions of any shape and kind, both also in chunks."""
    rope, axes = draw(st.sampled_from(ROPES)), draw(st.sampled_from(["bshd", "bhsd", "sxhbd"]))
    x = sample(*(SIZES[a] for a in axes), dtype=draw(st.sampled_from(ALL_FLOATS)))
    batch = tuple(SIZES[a] for a in axes if a not in "shd")
    rows = draw(st.sampled_from([(9,), (*batch, 9), (*batch, 1), (*(1 for _ in batch), 9)]))
    shape = (3, *rows) if rope.position_axes else rows
    p = np.random.default_rng(draw(st.integers(0, 99))).uniform(-70_000, 1 << 30, shape)
    p = p.astype(draw(st.sampled_from(["int32", "int64", "float32", "float64"])))
    return rope, axes, x, chunked(draw, x), p, draw(st.sampled_from([p, *[chunked(draw, p)] * 3]))


@given(calls())
def test_every_operation_of_any_chunks_has_the_chunks_of_x_and_the_bits_of_numpy(call):
    rope, axes, x, lazy, host, at = call
    for turn in (
        lambda x, p, _: rope.rotate(x, p, axes=axes),
        lambda x, p, _: rope.unrotate(x, p, axes=axes),
        lambda x, p, _: rope.rerotate(x, None, p, axes=axes),
        lambda x, _, tables: rope_xp.apply_tables(x, *tables, axes=axes),
        lambda x, *_: rope.rotate(x, axes=axes),
    ):
        got = turn(lazy, at, rope.cos_sin(at, 8))
        assert got.chunks == (*lazy.chunks[:-1], (8,))
        equal(got, turn(x, host, rope.cos_sin(host, 8)))


def test_cos_sin_has_the_chunks_of_its_positions():
    many = da.from_array(np.arange(30, dtype="uint64").reshape(2, 15), chunks=(1, 4))
    tiny = da.from_array(np.array([-1e-9, 0.5], "f4"), chunks=1)  # 1 - 1e-9 is no float32
    for at, dtype in ((many, np.float64), (many[1, 4], np.float32), (tiny, np.float64)):
        tables = (RoPE().cos_sin(p, 8, dtype=dtype) for p in (at, at.compute()))
        for got, expected in zip(*tables, strict=True):
            assert got.chunks == (*at.chunks, (4,))
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
    merged = blocks * (len(head_dim) - 1)  # tasks that make head_dim whole
    assert str(rope_xp.explain(lazy, lazy)) == "dask: blockwise"
    kinds = [None, np.arange(40) / 3, da.arange(40, chunks=11), da.zeros((2, 40), chunks=(1, 7))]
    with dask.config.set(scheduler=lambda *_, **__: pytest.fail("something was computed")):
        for p in kinds:
            assert tasks(RoPE().rotate(lazy, p)) <= 6 * blocks + merged


def test_graphs_travel_without_tables():
    cloudpickle = pytest.importorskip("cloudpickle")
    lazy = da.ones((1, 4096, 4, 128), chunks=(1, 32, 4, 128))
    got = RoPE(base=76_543.0, scaling=rope_xp.scaling.YaRN(4.0, 64)).rotate(lazy)
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
    x, p, both = sample(9, 9, 9, 8), np.arange(9) * 7, np.arange(81).reshape(9, 9)
    for axis, host, at in (
        *((axis, None, None) for axis in (0, 2)),
        *((axis, p, at) for axis in (0, 2) for at in (p, p[None], da.from_array(p, chunks=2))),
        *((axis, both, unknown(both, axis)) for axis in (0, 1)),
        (1, p, unknown(p, 0)),
    ):
        for y in rope_xp.apply(unknown(x, axis), unknown(x, axis), at):
            np.testing.assert_array_equal(y.compute(), RoPE().rotate(x, host))


def test_chunks_of_unknown_lengths_are_refused_where_lengths_matter():
    x = sample(9, 9, 9, 8)
    lazy, at, tokens = da.from_array(x, chunks=3), unknown(np.arange(9), 0), unknown(x, 1)
    more = da.concatenate([at, da.arange(1)])
    for message, call in (
        *(("unknown length", lambda p=p: RoPE().rotate(tokens, p)) for p in (None, np.arange(9))),
        ("unknown length", lambda: RoPE().rotate(tokens, da.arange(9))),
        ("positions has an axis", lambda: RoPE().rotate(lazy, at)),
        ("q has an axis", lambda: rope_xp.apply(unknown(x, 0), lazy)),
        ("3 chunks along an axis.* has 2", lambda: RoPE().rotate(tokens, more)),
        ("unknown length", lambda: RoPE().rotate(unknown(x, 3))),
        ("unknown length", lambda: RoPE(rotary_dim=4).rotate(unknown(x, 3))),
    ):
        with pytest.raises(RopeError, match=f"{message}.*compute_chunk_sizes"):
            call()
    with rope_xp.use_path("portable"), pytest.raises(RopeError, match="compute_chunk_sizes"):
        RoPE().rotate(tokens)
    tokens.compute_chunk_sizes()
    equal(RoPE().rotate(tokens), RoPE().rotate(x))


@pytest.mark.parametrize("tokens", [64, 8192])
def test_blocks_that_do_not_fit_their_positions_raise_when_computed(tokens):
    """Of unknown lengths: large blocks take kernels, which would read as many as they need."""
    x = da.ones((1, tokens, 2, 64), chunks=(1, tokens // 2, 2, 64), dtype=np.float32)
    at = da.arange(tokens, chunks=tokens // 2)
    some, one = at % 5 > 0, at % (tokens // 2) == 3
    for x_mask, mask in ((some, at >= 0), (some, one), (one, some)):
        with pytest.raises(RopeError, match="a block of shape .* does not fit"):
            RoPE().rotate(x[:, x_mask], at[mask]).compute()
    selected = at[some].compute()
    expected = RoPE().rotate(np.ones((1, len(selected), 2, 64), np.float32), selected)
    np.testing.assert_array_equal(RoPE().rotate(x[:, some], at[some]).compute(), expected)
