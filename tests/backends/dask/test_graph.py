"""dask: how many tasks there are, how they are named and what travels with them."""

import pickle

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp._rotation.tables import host_tables

dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is installed without its arrays")

RULE = rope_xp.scaling.YaRN(4.0, 64)


def tasks(*arrays: da.Array) -> int:
    return len({key for x in arrays for key in dict(x.__dask_graph__())})


@pytest.fixture
def no_computing():
    """Make every computation an error."""

    def refuse(*_, **__):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


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
