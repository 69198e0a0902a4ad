"""Tables of angles and other caches: bounded, shared by whom they fit; and those of cos_sin."""

import importlib.util
import itertools
import math
import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import sample
from support.cases import slow
from support.equality import check_angles
from support.oracles import exact_cos_sin
from support.programs import printed
from support.rules import Only, Twice
from support.targets import namespace, truth

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp._core.tables import TableKey
from rope_xp._rotation.tables import host_tables

BASES = itertools.count(77_777)  # of no rope whose tables are cached


def new_key(head_dim):
    return TableKey(RoPE(base=next(BASES)), head_dim, False, False)


def test_tables_are_built_once_for_all_lengths_and_positions(backend):
    rope, before = RoPE(base=next(BASES)), host_tables.__self__.built
    truth(rope.rotate, np.ones((1, 2, 8), np.float32))  # threads of dask may build them at once
    for length in (5, 70):
        x = backend.make(np.ones((length, 2, 8), np.float32))
        for p in (None, np.arange(length) + 10**9):
            backend.back(backend.run(lambda x, p=p: rope.rotate(x, p), x))
    assert host_tables.__self__.built == before + 1


@pytest.fixture
def room_for_six(monkeypatch):
    """Limit all caches to six tables of 32 components in float32, and clear them."""
    monkeypatch.setattr(caches, "MAX_BYTES", 6 * (4609 * 32 + 16) * 4)
    rope_xp.clear_caches()


def count_bytes() -> int:
    table_caches = [c for c in caches.REGISTRY.values() if isinstance(c, caches.TableCache)]
    every = [t for cache in table_caches for tables in cache.values() for t in tables]
    return sum({id(t): 4 * math.prod(t.shape) for t in every if t is not None}.values())


@pytest.mark.usefixtures("room_for_six")
def test_tables_of_many_ropes_stay_within_the_bound_of_bytes(backend):
    x = backend.make(np.ones((3, 1, 32), np.float32))
    for _ in range(12):
        RoPE(base=next(BASES)).rotate(x)
        assert count_bytes() <= caches.MAX_BYTES


@pytest.mark.usefixtures("room_for_six")
def test_tables_used_least_lately_are_evicted_but_never_the_two_newest():
    first, *others = (new_key(32) for _ in range(7))
    tables = host_tables(first)
    for other in others[:5]:
        host_tables(other)
        assert host_tables(first) is tables
    host_tables(others[5])
    assert host_tables(first) is not tables
    large = {k: host_tables(k) for k in (new_key(256), new_key(256))}  # two ropes of a model
    assert all(host_tables(k) is tables for k, tables in large.items())


@pytest.mark.usefixtures("room_for_six")
def test_clear_caches_may_run_between_any_two_steps():
    """As a handler of a signal or a finalizer may, which runs between two steps of Python."""
    bounded, chance = caches.BoundedCache("test", 4), random.Random(0)
    del caches.REGISTRY["test"]
    codes = {caches.TableCache.__missing__.__code__, caches.BoundedCache.store.__code__}
    codes |= {caches.BoundedCache.get.__code__, caches._evict_first.__code__}

    def trace(frame, event, _):
        if frame.f_code not in codes:
            return trace if event == "call" else None
        frame.f_trace_opcodes = True
        if event == "opcode" and chance.random() < 0.03:
            sys.settrace(None)
            rope_xp.clear_caches()
            bounded.cache_clear()
            sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for i in range(150):
            bounded.store(i, i)
            assert bounded.get(i) in (i, None)
            assert host_tables(new_key(32)).low.shape == (2048, 32)
    finally:
        sys.settrace(before)
    assert count_bytes() <= caches.MAX_BYTES


def test_every_cache_has_a_bound():
    assert "rope_xp._rotation.tables.host_tables" in caches.REGISTRY
    for name, cache in caches.REGISTRY.items():
        if not isinstance(cache, caches.TableCache):
            counted = isinstance(cache, caches.BoundedCache)
            assert 0 < (cache.max_entries if counted else cache.cache_info().maxsize) <= 4096, name


@given(st.integers(2, 4), st.lists(st.integers(0, 5), min_size=20, max_size=60))
def test_a_bounded_cache_keeps_the_entries_used_last(size, keys):
    cache, used = caches.BoundedCache("test", size), list[int]()
    del caches.REGISTRY["test"]
    for key in keys:
        value = cache.get(key)
        assert value == (key, key) or (value is None and key not in used[-size:])
        if value is None:
            cache.store(key, (key, key))
        used = [*(k for k in used if k != key), key]
        assert len(cache) == len(cache.values()) <= size
    cache.cache_clear()
    assert (len(cache), cache.values()) == (0, [])


@pytest.mark.skipif(sys.platform != "linux", reason="RSS is read from /proc")
@pytest.mark.parametrize(
    ("kind", "library", "most"),
    [
        ("ropes", "numpy", 70),  # 64 MiB of tables
        slow("ropes", "jax", 70),
        slow("gradients", "torch", 70),
        slow("mixed", "torch", 70),
        ("one_rope", "numpy", 8),  # tables of two head_dims, and nothing for a call
        slow("one_rope", "torch", 8),
    ],
)
def test_calls_of_every_kind_hold_few_mib_until_clear_caches(kind, library, most):
    """Where malloc returns what is freed to the system."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    pytest.importorskip("rope_xp_backends.cpu._native")
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    growth, after_clearing = map(float, printed("held_memory.py", kind, library, **malloc).split())
    assert growth <= most
    assert after_clearing <= growth + 5


def test_a_rope_that_is_used_often_gets_whole_tables_with_the_same_bits(rng):
    native = pytest.importorskip("rope_xp_backends.cpu._native")
    rope, x = RoPE(base=next(BASES), layout="half"), sample(rng, 1, 64, 2, 32)
    positions = rng.integers(1 - (1 << 31), 1 << 31, 64)
    expected = truth(rope.rotate, x, positions)
    rope_xp.clear_caches()
    before = host_tables.__self__.built
    rows, built = native.tune("table_rows", 200), []
    try:
        for _ in range(5):
            np.testing.assert_array_equal(rope.rotate(x, positions), expected)
            built.append(host_tables.__self__.built - before)
    finally:
        native.tune("table_rows", rows)
    assert built == [0, 0, 0, 0, 1]


def test_equal_rules_of_other_types_do_not_share_tables(backend):
    assert Only((0.5,)) == Twice((0.5,))
    for rule, frequency in ((Only((0.5,)), 0.5), (Twice((0.5,)), 1.0), (Only((1,)), 1.0)):
        true = exact_cos_sin((3,), (frequency,))
        check_angles(backend, RoPE(scaling=rule), [3], true, 2.4e-7)


def test_cos_sin_has_the_library_and_device_of_its_positions_or_xp(backend):
    xp, positions = namespace(backend), backend.make(np.arange(3))
    device = getattr(positions, "device", None)
    expected = RoPE().cos_sin([0, 1, 2], 8)
    for tables in (
        RoPE().cos_sin(positions, 8, xp=xp),
        RoPE().cos_sin(positions, 8),
        RoPE().cos_sin([0, 1, 2], 8, xp=xp, device=device),
    ):
        for table, e in zip(tables, expected, strict=True):
            assert type(table) is type(positions)
            assert getattr(table, "device", None) == device
            np.testing.assert_array_equal(backend.back(table), e)
    assert tuple(RoPE().cos_sin(5, 8, xp=xp)[0].shape) == (4,)


def test_cos_sin_has_the_dtype_that_is_asked_for():
    torch = pytest.importorskip("torch")
    cos, sin = RoPE().cos_sin(torch.arange(3), 8, dtype=torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert RoPE().cos_sin([0, 1, 2], 8, dtype="float32")[0].dtype == np.float32
    for name in ("float64", float, "d", np.float64):
        exact = RoPE().cos_sin([0, 1, 2], 8, dtype=name)
        assert exact[0].dtype == np.float64
    np.testing.assert_allclose(cos.double().numpy(), exact[0], rtol=0, atol=2**-9)
    assert RoPE().cos_sin([0, 1, 2], 8, xp=torch, device="meta")[0].device.type == "meta"
    with pytest.raises(ValueError, match="is on meta and positions on cpu; move one"):
        RoPE().cos_sin(torch.arange(3), 8, device="meta")


def test_cos_sin_takes_positions_of_any_shape():
    positions = np.arange(24).reshape(2, 3, 4)
    cos, _ = RoPE().cos_sin(positions, 8)
    np.testing.assert_array_equal(cos[1, 2, 3], RoPE().cos_sin(23, 8)[0])
    assert RoPE().cos_sin([], 8)[0].shape == (0, 4)
    grid, _ = RoPE(position_axes=(0, 1, 0, 1)).cos_sin(positions[:, :2], 8)
    np.testing.assert_array_equal(grid[..., 1], cos[1, :2, :, 1])
