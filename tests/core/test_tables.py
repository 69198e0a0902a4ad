"""Tables of angles and other caches: bounded, shared by whom they fit; and those of cos_sin."""

import importlib
import importlib.util
import itertools
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bits import sample
from support.cases import slow
from support.programs import printed
from support.rules import Only, Twice
from support.targets import namespace, truth

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp._core.tables import TableKey
from rope_xp._rotation.tables import host_tables, small_tables


def key(base: float, head_dim: int) -> TableKey:
    return TableKey(RoPE(base=base), head_dim, False, False)


BASES = itertools.count(77_777)  # of no rope whose tables are cached


def test_tables_are_built_once_for_all_lengths_and_positions(backend):
    rope, before = RoPE(base=next(BASES)), host_tables.__self__.built
    truth(rope.rotate, np.ones((1, 2, 8), np.float32))  # threads of dask may build them at once
    for length in (5, 70) if backend.compiles else (5, 6, 70):
        x = backend.make(np.ones((length, 2, 8), np.float32))
        for p in (None, np.arange(length) + 10**9):
            for run in (backend.run, lambda rotate, x: rotate(x)):
                backend.back(run(lambda x, p=p: rope.rotate(x, p), x))
    assert host_tables.__self__.built == before + 1


def test_tables_take_the_root_of_the_largest_position():
    """4609 rows serve 2**31 positions."""
    host = host_tables(key(77_777.0, 128))
    assert sum(t.nbytes for t in host if t is not None) < 2.5e6
    assert sum(t.shape[0] for t in tuple(host)[:3]) == 2048 + 2048 + 513


# --- bounds --------------------------------------------------------------------------------------


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
    for i in range(12):
        RoPE(base=2000.0 + i).rotate(x)
        assert count_bytes() <= caches.MAX_BYTES


@pytest.mark.usefixtures("room_for_six")
def test_tables_used_least_lately_are_evicted_first():
    first, *others = (key(3000.0 + i, 32) for i in range(7))
    tables = host_tables(first)
    for other in others[:5]:
        host_tables(other)
        assert host_tables(first) is tables
    host_tables(others[5])
    assert host_tables(first) is not tables


@pytest.mark.usefixtures("room_for_six")
def test_the_two_newest_tables_are_kept_beyond_the_bound_of_bytes():
    """Else two ropes of a model would have theirs made anew in every call."""
    tables = {k: host_tables(k) for k in (key(4000.0, 256), key(4001.0, 256))}
    for _ in range(3):
        assert all(host_tables(k) is t for k, t in tables.items())


@pytest.mark.usefixtures("room_for_six")
def test_caches_may_be_cleared_amid_any_of_their_steps():
    """As a handler of a signal or a finalizer may do, which runs between two steps of Python."""
    bounded, bases = caches.BoundedCache("test", 4), itertools.count(9000)
    del caches.REGISTRY["test"]
    codes = {caches.TableCache.__missing__.__code__, caches.BoundedCache.store.__code__}
    codes |= {caches.BoundedCache.get.__code__, caches._evict_first.__code__}
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        if frame.f_code not in codes:
            return trace if event == "call" else None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        if steps == chosen:
            steps += 1
            sys.settrace(None)
            rope_xp.clear_caches()
            bounded.cache_clear()
            sys.settrace(trace)
        return trace

    for chosen in itertools.count(1):
        steps = 0
        tables = [key(float(next(bases)), 32) for _ in range(7)]
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for i, table_key in enumerate(tables):
                bounded.store(i, i)
                assert bounded.get(i) in (i, None)
                assert host_tables(table_key).low.shape == (2048, 32)
        finally:
            sys.settrace(before)
        assert count_bytes() <= caches.MAX_BYTES
        if steps < chosen:
            break


def test_every_cache_has_a_bound_and_lies_in_one_module():
    home = Path(caches.__file__)
    folders = [home.parents[1], Path(importlib.import_module("rope_xp_backends").__file__).parent]
    uses = re.compile(
        r"^(?:\s*@.*|from functools import.*|.*functools\.)(?:lru_cache|cached_property)",
        re.MULTILINE,
    )
    # The benchmarks cache their inputs, and run in no program of a user.
    paths = [p for folder in folders for p in folder.rglob("*.py") if "_bench" not in p.parts]
    assert [path for path in paths if uses.search(path.read_text("utf-8"))] == [home]
    importlib.import_module("rope_xp_backends.numpy")
    assert "rope_xp._rotation.tables.host_tables" in caches.REGISTRY
    for name, cache in caches.REGISTRY.items():
        if not isinstance(cache, caches.TableCache):
            counted = isinstance(cache, caches.BoundedCache)
            assert 0 < (cache.max_entries if counted else cache.cache_info().maxsize) <= 4096, name


@given(st.integers(2, 9), st.lists(st.integers(0, 12), max_size=200))
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


SELDOM = [
    slow("gradients", "torch"),
    slow("mixed", "torch"),
    slow("ropes", "jax"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="RSS is read from /proc")
@pytest.mark.parametrize(("kind", "library"), [("ropes", "numpy"), *SELDOM])
def test_calls_of_every_kind_hold_at_most_64_mib_of_rss(kind, library):
    """70 MiB of RSS, 64 of them tables, where malloc returns what is freed to the system."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    growth, after_clearing = map(float, printed("held_memory.py", kind, library, **malloc).split())
    assert growth <= 70
    assert after_clearing <= growth + 5


@pytest.mark.skipif(sys.platform != "linux", reason="RSS is read from /proc")
@pytest.mark.parametrize("library", ["numpy", slow("torch")])
def test_ten_thousand_calls_of_a_rope_hold_8_mib_of_rss(library):
    """Tables of two head_dims, and nothing for a call."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    pytest.importorskip("rope_xp_backends.cpu._native")
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    growth, _ = map(float, printed("held_memory.py", "one_rope", library, **malloc).split())
    assert growth <= 8


def test_200_ropes_in_turn_keep_their_tables():
    pytest.importorskip("rope_xp_backends.cpu._native")
    x, many = np.ones((1, 1, 32, 128), np.float32), [RoPE(base=next(BASES)) for _ in range(200)]
    rope_xp.clear_caches()
    before = small_tables.__self__.built, host_tables.__self__.built
    for _ in range(3):
        for rope in many:
            rope.apply(x, x, [5])
    assert (small_tables.__self__.built, host_tables.__self__.built) == (before[0] + 200, before[1])


def test_a_rope_that_is_used_often_gets_whole_tables_with_the_same_bits(rng):
    native = pytest.importorskip("rope_xp_backends.cpu._native")
    rope, x = RoPE(base=next(BASES), layout="half"), sample(rng, 1, 64, 2, 32)
    positions = rng.integers(1 - (1 << 31), 1 << 31, 64)
    expected = truth(rope.rotate, x, positions)
    rope_xp.clear_caches()
    before = host_tables.__self__.built
    rows = native.tune("table_rows", 200)
    try:
        built = []
        for _ in range(5):
            np.testing.assert_array_equal(rope.rotate(x, positions), expected)
            built.append(host_tables.__self__.built - before)
    finally:
        native.tune("table_rows", rows)
    assert built == [0, 0, 0, 0, 1]


# --- whose tables they are -----------------------------------------------------------------------


@dataclass(frozen=True)
class Nested:
    """A scaling of one class that holds others; ``times`` it leaves out of ==."""

    inner: tuple[Only, ...]
    times: float = field(default=1.0, compare=False)
    effective_attention_factor = softmax_scale = 1.0
    for_length = Only.for_length

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return self.times * self.inner[0].frequencies(base, rotary_dim)


HALF, DOUBLED = Only((0.5,)), Twice((0.5,))
EQUAL = {
    "classes": (HALF, DOUBLED),
    "classes of parts": (Nested((HALF,)), Nested((DOUBLED,))),
    "fields left out": (Nested((HALF,)), Nested((HALF,), times=2.0)),
    "a truth value": (Only((1,)), Only((True,))),
}


@pytest.mark.parametrize(("one", "two"), EQUAL.values(), ids=EQUAL)
def test_equal_rules_of_other_types_do_not_share_tables(backend, one, two):
    assert one == two
    assert RoPE(scaling=one) != RoPE(scaling=two)
    x = np.array([[[1.0, 0.0]]], np.float32)
    for rule in (one, two):
        rope, angle = RoPE(scaling=rule), 3 * float(rule.frequencies(1e4, 2)[0])
        rotated = backend.run(lambda x, rope=rope: rope.rotate(x, [3]), backend.make(x))
        expected = [math.cos(angle), math.sin(angle)]
        np.testing.assert_allclose(backend.back(rotated)[0, 0], expected, rtol=0, atol=2.4e-7)


# --- cos_sin -------------------------------------------------------------------------------------


def test_cos_sin_has_the_library_and_device_of_its_positions_or_xp(backend):
    xp, positions = namespace(backend), backend.make(np.arange(3))
    device = getattr(positions, "device", None)
    expected = RoPE().cos_sin([0, 1, 2], 8)
    for tables in (
        RoPE().cos_sin(positions, 8),
        RoPE().cos_sin([0, 1, 2], 8, xp=xp, device=device),
        RoPE().cos_sin(np.arange(3), 8, xp=xp, device=device),
        RoPE().cos_sin(positions, 8, xp=xp),
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
    exact = RoPE().cos_sin([0, 1, 2], 8, dtype=np.float64)
    assert exact[0].dtype == np.float64
    assert RoPE().cos_sin([0, 1, 2], 8, dtype="float32")[0].dtype == np.float32
    for name in ("float64", float, "d"):
        np.testing.assert_array_equal(RoPE().cos_sin([0, 1, 2], 8, dtype=name), exact)
    np.testing.assert_allclose(cos.double().numpy(), exact[0], rtol=0, atol=2**-9)
    assert RoPE().cos_sin([0, 1, 2], 8, xp=torch, device="meta")[0].device.type == "meta"
    with pytest.raises(ValueError, match="is on meta and positions on cpu; move one"):
        RoPE().cos_sin(torch.arange(3), 8, device="meta")


def test_cos_sin_takes_positions_of_any_shape():
    positions = np.arange(24).reshape(2, 3, 4)
    cos, sin = RoPE().cos_sin(positions, 8)
    assert cos.shape == sin.shape == (2, 3, 4, 4)
    np.testing.assert_array_equal(cos.reshape(-1, 4), RoPE().cos_sin(positions.ravel(), 8)[0])
    assert RoPE().cos_sin(5, 8)[0].shape == (4,)
    assert RoPE().cos_sin([], 8)[0].shape == (0, 4)
    grid, _ = RoPE(position_axes=(0, 1, 0, 1)).cos_sin(positions[:, :2], 8)
    assert grid.shape == (2, 4, 4)
    np.testing.assert_array_equal(grid[..., 1], cos[1, :2, :, 1])
