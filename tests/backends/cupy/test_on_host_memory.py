"""cupy without a GPU: its dispatch, and its path on host memory."""

import contextlib
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from rope_xp_backends.gpu import cuda
from support import cuda_on_cpu
from support.bits import sample
from support.equality import LAYOUTS

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core import caches
from rope_xp._core.caches import TableCache
from rope_xp._dispatch import backend as dispatch
from rope_xp._rotation import portable

cupy = pytest.importorskip("cupy")

glue = importlib.import_module("rope_xp_backends.cupy")
STREAM = SimpleNamespace(is_capturing=lambda: False)
POSITIONS = np.array([0, 2047, 70_000, (1 << 31) - 1, -5])


def on_host(x):
    """Return an array of cupy that lies in the memory of one of numpy."""
    memory = cupy.cuda.UnownedMemory(x.ctypes.data, x.nbytes, x, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(x.shape, x.dtype, pointer, strides=x.strides)


def ones(*shape):
    return on_host(np.ones(shape, np.float32))


def read(x):
    interface = {"version": 3, "shape": x.shape, "strides": x.strides, "typestr": f"|V{x.itemsize}"}
    interface["data"] = (x.data.ptr, True)
    return np.array(SimpleNamespace(__array_interface__=interface)).view(x.dtype)


@pytest.fixture
def host(monkeypatch):
    """Have cupy's device be the host's memory; yield the devices whose tables were waited for."""
    if reason := cuda_on_cpu.decline_reason():
        pytest.skip(reason)
    if cupy.is_available():
        pytest.skip("cupy finds a GPU, where it needs no stand-in")

    def compiled(key):
        return lambda grid, block, words: cuda_on_cpu.launch(key[0], grid, block, *words)

    monkeypatch.setattr(glue, "compile_kernel", compiled)
    monkeypatch.setattr(cupy.cuda, "Device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: STREAM)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(cupy, "asarray", lambda x: on_host(np.array(x)))
    monkeypatch.setattr(cupy, "array", lambda x, order: on_host(read(x)))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: on_host(np.empty(shape, dtype)))
    monkeypatch.setattr(cupy, "empty_like", lambda x, **_: on_host(np.empty_like(read(x))))
    monkeypatch.setattr(glue.BACKEND, "paths", (glue.Cuda(),))
    synchronized = []
    monkeypatch.setattr(glue.BACKEND, "synchronize", synchronized.append)
    cache = TableCache(dispatch._tables_on_device.__self__.function)  # these lie on no device
    monkeypatch.setattr(dispatch, "_tables_on_device", cache.__getitem__)
    return synchronized


AXES = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_with_cupy_equal_numpy(host, layout, dtype, axes, rng):
    """Arrays, glue and launches are cupy's own. Only who computes is not."""
    fused = sample(rng, 2, 5, 6, 16, dtype=dtype)
    rope = RoPE(layout=layout, rotary_dim=12, rotary_offset=2)

    def parts(x):
        return tuple(x[:, :, part].transpose(AXES[axes]) for part in (slice(4), slice(4, None)))

    expected = rope.apply(*parts(fused), POSITIONS, axes=axes)
    angles = rope.with_tables(*map(on_host, rope.cos_sin(POSITIONS, 16)))
    q, k = parts(on_host(fused.copy()))
    new = (
        *(rope.apply(q, k, on_host(POSITIONS.astype(np.int32)), axes=axes), expected),
        *(rope.apply(q, k, axes=axes), rope.apply(*parts(fused), axes=axes)),
        *(angles.apply(q, k, axes=axes), expected),
        *(rope.apply(q, k, on_host(POSITIONS), axes=axes, out=(q, k)), expected),
    )
    for got, right in zip(new[::2], new[1::2], strict=True):
        for x, y in zip(got, right, strict=True):
            assert type(x) is cupy.ndarray
            np.testing.assert_array_equal(read(x), y)
    assert rope_xp.explain(q, k, POSITIONS, rope, axes=axes).path == "cuda"


def call_every_way(make, q, k, cache, weights):
    """Yield results of calls on arrays that ``make`` makes of numpy's. The last are in place."""
    rope, at, slots = RoPE(base=777.0, layout="half"), make(np.array([5])), make(np.array([[3]]))
    tables = [make(t) for t in rope.cos_sin([5], 8)]
    norm = rope_xp.QKNorm(*map(make, weights))
    q, k, cache = make(q), make(k), make(cache)
    yield rope.apply(q, k, at)
    yield rope.apply(q, k)
    yield rope.apply(q, k, at, norm=norm)
    yield (rope.unrotate(q, at),)
    yield (rope_xp.apply_tables(k, *tables, layout="half"),)
    yield rope.apply(q, k, at, slots=slots, out=(None, cache))
    yield rope.apply(q, k, at, out=(q, k))


def test_calls_like_earlier_ones_are_launched_without_a_plan(host, monkeypatch, rng):
    """On other arrays; and any that may be an error is planned again."""
    shapes = (1, 1, 4, 8), (1, 1, 2, 8), (6, 2, 8), (2, 8)
    for _ in range(2):
        given = [sample(rng, *shape) for shape in shapes]
        got = call_every_way(on_host, *[x.copy() for x in given])
        for results, expected in zip(got, call_every_way(np.copy, *given), strict=True):
            for x, y in zip(results, expected, strict=True):
                np.testing.assert_allclose(read(x), y, rtol=1e-6)  # a norm differs by 2 ulp
        monkeypatch.setattr(cuda, "plan_steps", lambda *_: pytest.fail("it was planned again"))
    memory = ones(1, 1, 8, 8)
    with pytest.raises(RopeError, match="overlap"):
        rope_xp.apply(*[ones(*x) for x in shapes[:2]], out=(memory[:, :, :4], memory[:, :, 3:5]))
    caches.clear_caches()
    with pytest.raises(pytest.fail.Exception):
        list(call_every_way(on_host, *given))


def test_angles_that_no_launch_looks_up_are_computed_once_a_call(host, monkeypatch):
    """Those of float64, which calls like earlier ones compute again."""
    computed, x = [], on_host(np.ones((3, 2, 8)))
    tables = [on_host(t) for t in RoPE().cos_sin(np.arange(3), 8, dtype="float64")]
    monkeypatch.setattr(portable, "cos_sin", lambda *_: computed.append(1) or tables)
    for times in (1, 2):
        RoPE().rotate(x, on_host(np.arange(3)))
        assert len(computed) == times


def test_tables_are_waited_for_once_and_freed_without_a_pool(host, monkeypatch):
    """Any stream may read them; a pool would hand their memory to one while another reads it."""
    put, pool, allocators = cupy.asarray, cupy.cuda.get_allocator(), []

    def record(x):
        allocators.append((x.ndim == 2, cupy.cuda.get_allocator()))
        return put(x)

    monkeypatch.setattr(cupy, "asarray", record)
    for _ in range(2):
        RoPE(base=123.0).rotate(ones(3, 2, 8), [5, 6, 7])
        assert host == [0]
    with cupy.cuda.using_allocator(None):
        raw = cupy.cuda.get_allocator()
    assert raw is not pool
    assert [allocator for is_table, allocator in allocators if is_table] == [raw] * 3
    assert allocators[0] == (False, pool)  # positions


def test_graphs_keep_the_tables_that_they_read(host, monkeypatch):
    monkeypatch.setattr(caches, "PINNED", {})
    x = ones(3, 2, 8)
    RoPE().rotate(x, [5, 6, 7])
    assert not caches.PINNED
    monkeypatch.setattr(STREAM, "is_capturing", lambda: True)
    for _ in range(2):
        RoPE().rotate(x, [5, 6, 7])
        assert len(caches.PINNED) == 3 + 1  # digits, and frequencies


def test_failures_while_a_graph_is_captured_are_not_remembered(host, monkeypatch):
    x = ones(3, 2, 8)
    monkeypatch.setattr(STREAM, "is_capturing", lambda: True)
    monkeypatch.setattr(glue, "compile_kernel", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RoPE().rotate(x)
    assert rope_xp.explain(x, x).path == "cuda"


def test_calls_with_cupy_refuse_overlap_strided_components_and_arrays_of_numpy(host):
    memory, x, wide = np.zeros((3, 4, 8), np.float32), ones(3, 2, 8), ones(3, 2, 16)
    q, slots = on_host(memory), on_host(memory.reshape(-1)[:3].view(np.int32))
    with pytest.raises(RopeError, match=r"out\[0\] overlaps slots; pass"):
        rope_xp.apply(q, x, slots=slots, out=(q, ones(16, 2, 8)))
    with pytest.raises(RopeError, match="out overlaps slots; pass"):
        RoPE().rerotate(q, [1, 2, 3], [4, 5, 6], slots=slots, out=q)
    for strided in (wide[..., ::2], wide[..., 7::-1]):
        declined = dict(rope_xp.explain(strided, strided).declined)
        assert declined["cuda"] == "the last axis of an array is not contiguous"
        with rope_xp.use_path("cuda"), pytest.raises(RopeError, match="not contiguous"):
            RoPE().rotate(x, out=strided)
    with pytest.raises(TypeError, match="q is a numpy array and k a cupy array"):
        rope_xp.apply(read(x), x)
