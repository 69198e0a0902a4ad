"""Tables of angles and other caches: bounded, shared by whom they fit; and those of cos_sin."""

import importlib
import importlib.util
import itertools
import math
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import oracles
from support.exhaustive import exhaustive
from support.programs import printed
from support.targets import Target, namespace

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp._core.tables import TableKey
from rope_xp._rotation.tables import host_tables
from rope_xp.scaling import Linear, YaRN


def key(base: float, head_dim: int) -> TableKey:
    return TableKey(RoPE(base=base), head_dim, False, False)


def test_tables_are_small_and_shared() -> None:
    """O(sqrt(max position)): 4609 rows serve 2**31 positions, and are built once."""
    rope, before = RoPE(base=77_777.0), host_tables.__self__.built
    for length in (5, 50, 500):
        x = np.ones((length, 2, 128), np.float32)
        rope.rotate(x)
        rope.rotate(x, np.arange(length) + 1_000_000_000)
    assert host_tables.__self__.built == before + 1
    host = host_tables(key(77_777.0, 128))
    assert sum(t.nbytes for t in host if t is not None) < 2.5e6
    assert sum(t.shape[0] for t in tuple(host)[:3]) == 2048 + 2048 + 513


@pytest.mark.parametrize("r", [96, 128])
def test_tables_hold_the_nearest_float32(r: int) -> None:
    """Of the largest digits too, where a float64 frequency is too coarse: that costs 1.2e-7."""
    pairs, digits = [0, 1, 2, 3, 5, 9, r // 2 - 1], [0, 1, 2, 255, 510, 511]
    columns = [*pairs, *(r // 2 + i for i in pairs)]
    for table, unit in zip(tuple(host_tables(key(5e5, r)))[:3], (1, 1 << 11, 1 << 22), strict=True):
        true = oracles.true_cos_sin([d * unit for d in digits], 5e5, r, pairs)
        expected = np.concatenate(true, axis=1).astype(np.float32)
        np.testing.assert_array_equal(table[digits][:, columns], expected)


# --- bounds --------------------------------------------------------------------------------------


@pytest.fixture
def room_for_six(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit all caches to six tables of 32 components in float32, and clear them."""
    monkeypatch.setattr(caches, "MAX_BYTES", 6 * (4609 * 32 + 16) * 4)
    rope_xp.clear_caches()


def count_bytes() -> int:
    """Return the bytes of all tables that are cached."""
    table_caches = [c for c in caches.REGISTRY.values() if isinstance(c, caches.TableCache)]
    every = [t for cache in table_caches for tables in cache.values() for t in tables]
    return sum({id(t): 4 * math.prod(t.shape) for t in every if t is not None}.values())


@pytest.mark.usefixtures("room_for_six")
def test_many_ropes_take_a_known_number_of_bytes(backend: Target) -> None:
    """What is made of them for a library counts as well."""
    x = backend.make(np.ones((3, 1, 32), np.float32))
    for i in range(12):
        RoPE(base=2000.0 + i).rotate(x)
        assert count_bytes() <= caches.MAX_BYTES


@pytest.mark.usefixtures("room_for_six")
def test_the_oldest_tables_are_evicted() -> None:
    first, *others = (key(3000.0 + i, 32) for i in range(7))
    tables = host_tables(first)
    for other in others[:5]:
        host_tables(other)
        assert host_tables(first) is tables
    host_tables(others[5])
    assert host_tables(first) is not tables


@pytest.mark.usefixtures("room_for_six")
def test_tables_beyond_the_bound_are_kept_alone() -> None:
    """Else two ropes of a model would have theirs made anew in every call."""
    keys = [key(4000.0 + i, 256) for i in range(2)]
    tables = [host_tables(k) for k in keys]
    for _ in range(3):
        assert all(host_tables(k) is t for k, t in zip(keys, tables, strict=True))
    host_tables(key(1e4, 256))
    assert len(caches._ORDER) == 2


def test_caches_have_one_home_and_a_bound_each() -> None:
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


def test_a_cached_function_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "REGISTRY", {})
    double = caches.cached(2)(lambda n: 2 * n)
    assert [double(n) for n in (1, 2, 3, 3)] == [2, 4, 6, 6]
    (cache,) = caches.REGISTRY.values()
    info = cache.cache_info()
    assert (info.hits, info.misses, info.currsize) == (1, 3, 2)


@given(st.integers(2, 9), st.lists(st.integers(0, 12), max_size=200))
def test_a_bounded_cache_keeps_what_was_used_lately(size: int, keys: list[int]) -> None:
    """Half of its size are the entries that were looked up or stored last."""
    cache, used = caches.BoundedCache("test", size), list[int]()
    del caches.REGISTRY["test"]
    for key in keys:
        value = cache.get(key)
        assert value == (key, key) or (value is None and key not in used[-(size // 2) :])
        if value is None:
            cache.store(key, (key, key))
        used = [*(k for k in used if k != key), key]
        assert len(cache) == len(cache.values()) <= size
    cache.cache_clear()
    assert (len(cache), cache.values()) == (0, [])


def test_tables_that_are_built_while_caches_are_cleared() -> None:
    """As another thread may build some between any two steps, such as here the hash of a cache."""
    other, keys = caches.TableCache(lambda _: (np.zeros(1),)), itertools.count()

    class Hashed(caches.TableCache):
        def __hash__(self) -> int:
            assert other[next(keys)]
            return id(self)

    assert Hashed(other.function)[0]
    rope_xp.clear_caches()
    rope_xp.clear_caches()  # of the last of the others


def test_caches_are_cleared_while_threads_fill_them(monkeypatch: pytest.MonkeyPatch) -> None:
    table, done = np.zeros(1, np.float32), threading.Event()
    monkeypatch.setattr(caches, "REGISTRY", {})
    tables, values = caches.TableCache(lambda _: (table,)), caches.BoundedCache("values", 64)

    def fill(start: int) -> None:
        for key in itertools.count(start, 4):
            assert tables[key] == (table,)
            assert values.get(key - 4) in (None, key - 4)
            values.store(key, key)
            if done.is_set():
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(fill, i) for i in range(1, 5)]
            try:
                for _ in range(200):
                    time.sleep(1e-3)  # while the caches fill
                    rope_xp.clear_caches()
            finally:
                done.set()
        for future in futures:
            future.result()
    finally:
        sys.setswitchinterval(interval)
    rope_xp.clear_caches()
    assert len(caches._ORDER) == len(values) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="RSS is read from /proc")
@pytest.mark.parametrize(
    ("kind", "library"),
    [
        *(("ropes", "numpy"), ("angles", "torch"), exhaustive("ropes", "jax")),
        *(exhaustive("lengths", "torch"), exhaustive("gradients", "torch")),
        *(exhaustive("mixed", "numpy"), exhaustive("mixed", "torch")),
    ],
)
def test_calls_hold_little(kind: str, library: str) -> None:
    """70 MiB of RSS, 64 of them tables, where malloc returns what is freed to the system."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    growth, after_clearing = map(float, printed("held_memory.py", kind, library, **malloc).split())
    assert growth <= 70
    assert after_clearing <= growth + 5


# --- whose tables they are -----------------------------------------------------------------------


def test_two_bases_do_not_share_tables(backend: Target) -> None:
    x = backend.make(np.ones((4, 1, 8), np.float32))
    first, second = (backend.back(RoPE(base=b).rotate(x)) for b in (1e4, 1e5))
    assert (first != second).any()


class One(NamedTuple):
    """A scaling of one frequency, which equals any tuple of its value."""

    frequency: float
    effective_attention_factor = softmax_scale = 1.0

    def for_length(self, n: int) -> Any:
        return self

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.full(rotary_dim // 2, self.frequency)


class Two(One):
    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.full(rotary_dim // 2, 2 * self.frequency)


@dataclass(frozen=True)
class Nested:
    """A scaling of one class that holds others; ``times`` it leaves out of ==."""

    inner: tuple[One, ...]
    times: float = field(default=1.0, compare=False)
    effective_attention_factor = softmax_scale = 1.0
    for_length = One.for_length

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return self.times * self.inner[0].frequencies(base, rotary_dim)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (One(0.5), Two(0.5)),
        (Nested((One(0.5),)), Nested((Two(0.5),))),
        (Nested((One(0.5),)), Nested((One(0.5),), times=2.0)),
        (One(1), One(True)),
    ],
    ids=["classes", "classes of parts", "fields left out", "a truth value"],
)
def test_rules_that_are_equal_do_not_share_tables(backend: Target, one: Any, two: Any) -> None:
    assert one == two
    assert RoPE(scaling=one) != RoPE(scaling=two)
    x = np.array([[[1.0, 0.0]]], np.float32)
    for rule in (one, two):
        angle = 3 * float(rule.frequencies(1e4, 2)[0])
        rope = RoPE(scaling=rule)
        rotated = backend.run(lambda x, rope=rope: rope.rotate(x, [3]), backend.make(x))
        expected = [math.cos(angle), math.sin(angle)]
        np.testing.assert_allclose(backend.back(rotated)[0, 0], expected, rtol=0, atol=2.4e-7)


def test_ropes_that_hold_the_same_are_equal() -> None:
    for one, two in (
        (RoPE(base=10000), RoPE(base=10000.0)),
        (RoPE(scaling=Linear(4)), RoPE(scaling=Linear(4.0))),
        (RoPE(scaling=Nested((One(1),))), RoPE(scaling=Nested((One(1.0),)))),
        (RoPE(scaling=YaRN(4.0, 4096)), RoPE(scaling=YaRN(4.0, 4096))),
    ):
        assert one == two
        assert hash(one) == hash(two)
    assert RoPE() != 1


def test_threads_see_the_same_tables() -> None:
    x = np.random.default_rng(0).standard_normal((64, 2, 64), np.float32)
    ropes = [RoPE(base=1000.0 + i) for i in range(12)]

    def rotate(i: int) -> np.ndarray:
        return ropes[i % 12].rotate(x, np.arange(64) + i % 12)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(rotate, range(240)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, rotate(i))


# --- cos_sin -------------------------------------------------------------------------------------


def test_where_tables_are_made_and_of_what(backend: Target) -> None:
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


def test_dtype_of_tables() -> None:
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


def test_positions_of_any_shape() -> None:
    positions = np.arange(24).reshape(2, 3, 4)
    cos, sin = RoPE().cos_sin(positions, 8)
    assert cos.shape == sin.shape == (2, 3, 4, 4)
    np.testing.assert_array_equal(cos.reshape(-1, 4), RoPE().cos_sin(positions.ravel(), 8)[0])
    assert RoPE().cos_sin(5, 8)[0].shape == (4,)
    assert RoPE().cos_sin([], 8)[0].shape == (0, 4)
    grid, _ = RoPE(position_axes=(0, 1, 0, 1)).cos_sin(positions[:, :2], 8)
    assert grid.shape == (2, 4, 4)
    np.testing.assert_array_equal(grid[..., 1], cos[1, :2, :, 1])
