"""dask: tasks, their names and what travels with them; refusals, and chunks of unknown lengths."""

import pickle

import numpy as np
import pytest
from support.lazy import equal, sample

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._rotation.tables import host_tables

dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is installed without its arrays")


def tasks(*arrays: da.Array) -> int:
    return len({key for x in arrays for key in dict(x.__dask_graph__())})


@pytest.mark.parametrize("head_dim", [(8,), (5, 3)])
def test_few_tasks_a_block_and_nothing_is_computed(head_dim) -> None:
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
    with dask.config.set(scheduler=lambda *_, **__: pytest.fail("something was computed")):
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
    rope = RoPE(base=76_543.0, scaling=rope_xp.scaling.YaRN(4.0, 64))
    before = host_tables.__self__.built
    got = rope.rotate(lazy)
    assert host_tables.__self__.built == before
    (function,) = {
        layer.dsk if not hasattr(layer, "task") else layer.task.func
        for name, layer in got.dask.layers.items()
        if name == got.name
    }
    assert len(pickle.dumps(function)) < 1000
    assert repr(pickle.loads(pickle.dumps(function))) == repr(function)
    assert len(cloudpickle.dumps(dict(dask.optimize(got)[0].__dask_graph__()))) < 128 * 1000


def test_bad_numbers_are_told_at_once() -> None:
    lazy = da.ones((2, 9, 4, 8), dtype=np.float32)
    with pytest.raises(RopeError, match="for_length"):
        RoPE(scaling=rope_xp.scaling.DynamicNTK(2.0, 64)).rotate(lazy)
    with pytest.raises(RopeError, match="modulus below"):
        RoPE().rotate(lazy, np.arange(9) + (1 << 31))
    assert np.isnan(RoPE().rotate(lazy, da.arange(9) + (1 << 31)).compute()).all()


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
    return lazy[(*(slice(None),) * axis, da.ones(x.shape[axis], chunks=5) > 0)]


def test_unknown_lengths_work_where_they_do_not_matter() -> None:
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


def test_unknown_lengths_are_refused_where_they_matter() -> None:
    x = sample(9, 9, 9, 8)
    needed = "length is not known.*compute_chunk_sizes"
    for path, p in ((None, None), ("portable", None), (None, np.arange(9)), (None, da.arange(9))):
        with rope_xp.use_path(path), pytest.raises(RopeError, match=needed):
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
    for x_mask, mask in ((some, at >= 0), (some, one), (one, some)):
        with pytest.raises(RopeError, match="a block of shape .* does not fit"):
            rope.rotate(x[:, x_mask], at[mask]).compute()
    selected = np.flatnonzero(np.arange(tokens) % 5)
    expected = rope.rotate(np.ones((1, len(selected), 2, 64), np.float32), selected)
    np.testing.assert_array_equal(rope.rotate(x[:, some], at[some]).compute(), expected)
