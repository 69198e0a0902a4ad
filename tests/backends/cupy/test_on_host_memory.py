"""cupy without a GPU: its dispatch, and its path on host memory."""

import contextlib
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from support import cuda_on_cpu
from support.bits import sample
from support.equality import LAYOUTS

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp._core.caches import TableCache
from rope_xp._dispatch import backend as dispatch

cupy = pytest.importorskip("cupy")

glue = importlib.import_module("rope_xp_backends.cupy")
paths = importlib.import_module("rope_xp_backends.cupy.paths")
HEADS = (slice(4), slice(4, None))


def on_host(x):
    """Return an array of cupy that lies in the memory of one of numpy."""
    memory = cupy.cuda.UnownedMemory(x.ctypes.data, x.nbytes, x, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(x.shape, x.dtype, pointer, strides=x.strides)


def read(x):
    interface = {"version": 3, "shape": x.shape, "strides": x.strides, "typestr": f"|V{x.itemsize}"}
    interface["data"] = (x.data.ptr, True)
    return np.array(SimpleNamespace(__array_interface__=interface)).view(x.dtype)


STREAM = SimpleNamespace(is_capturing=lambda: False)


@pytest.fixture
def host(monkeypatch):
    """Have cupy's device be the host's memory; yield the devices whose tables were waited for."""
    if reason := cuda_on_cpu.decline_reason():
        pytest.skip(reason)
    if cupy.is_available():
        pytest.skip("cupy finds a GPU, where it needs no stand-in")

    def compiled(key):
        return lambda grid, block, words: cuda_on_cpu.launch(key[0], grid, block, *words)

    monkeypatch.setattr(paths, "compile_kernel", compiled)
    monkeypatch.setattr(cupy.cuda, "Device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: STREAM)
    monkeypatch.setattr(cupy, "asarray", lambda x: on_host(np.array(x)))
    monkeypatch.setattr(cupy, "array", lambda x, order: on_host(read(x)))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: on_host(np.empty(shape, dtype)))
    monkeypatch.setattr(cupy, "empty_like", lambda x: on_host(np.empty_like(read(x))))
    monkeypatch.setattr(glue.BACKEND, "paths", (glue.Cuda(),))
    synchronized = []
    monkeypatch.setattr(glue.BACKEND, "synchronize", synchronized.append)
    cache = TableCache(dispatch._tables_on_device.__self__.function)  # these lie on no device
    monkeypatch.setattr(dispatch, "_tables_on_device", cache.__getitem__)
    return synchronized


@pytest.mark.slow  # which compiles the kernels with norms
def test_norms_of_cached_calls_read_their_own_weights(host, rng):
    q, k = sample(rng, 5, 4, 16), sample(rng, 5, 2, 16)
    for _ in range(3):
        weights = [sample(rng, 16) for _ in "qk"]
        expected = rope_xp.apply(q, k, POSITIONS, norm=rope_xp.QKNorm(*weights))
        norm = rope_xp.QKNorm(*map(on_host, weights))
        got = rope_xp.apply(on_host(q), on_host(k), on_host(POSITIONS), norm=norm)
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(read(x), y, rtol=0, atol=2e-6)  # 2 ulp of what is below 8


POSITIONS = np.array([0, 2047, 70_000, (1 << 31) - 1, -5])
VIEWS = {
    "bshd": lambda x: x,
    "bhsd": lambda x: x.transpose(0, 2, 1, 3),
    "sbhd": lambda x: x.transpose(1, 0, 2, 3),
}


@pytest.mark.parametrize("axes", VIEWS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_equal_numpy(host, layout, dtype, axes, rng):
    """Arrays, glue and launches are cupy's own. Only who computes is not."""
    fused = sample(rng, 2, 5, 6, 16, dtype=dtype)
    rope = RoPE(layout=layout, rotary_dim=12, rotary_offset=2)
    parts = [fused[:, :, part] for part in HEADS]
    expected = [VIEWS[axes](e) for e in rope.apply(*parts, POSITIONS)]
    counted = [VIEWS[axes](e) for e in rope.apply(*parts)]
    angles = rope.with_tables(*map(on_host, rope.cos_sin(POSITIONS, 16)))

    def arrays():
        return tuple(VIEWS[axes](on_host(fused.copy())[:, :, part]) for part in HEADS)

    def in_place():
        q, k = arrays()
        return rope.apply(q, k, on_host(POSITIONS.copy()), axes=axes, out=(q, k))

    for call, right in (
        (lambda: rope.apply(*arrays(), on_host(POSITIONS.astype(np.int32)), axes=axes), expected),
        (lambda: rope.apply(*arrays(), axes=axes), counted),
        (lambda: angles.apply(*arrays(), axes=axes), expected),
        (in_place, expected),
    ):
        for g, e in zip(call(), right, strict=True):
            assert type(g) is cupy.ndarray
            np.testing.assert_array_equal(read(g), e)
    assert rope_xp.explain(*arrays(), POSITIONS, rope, axes=axes).path == "cuda"


def test_tables_are_waited_for_once_so_that_any_stream_may_read_them(host):
    for _ in range(2):
        RoPE().rotate(on_host(np.ones((3, 2, 8), np.float32)), [5, 6, 7])
        assert host == [0]


def test_evicted_tables_are_freed_without_a_pool(host, monkeypatch):
    """A pool would hand their memory to one stream while another reads it."""
    put, allocators = cupy.asarray, []

    def record(x):
        allocators.append((x.ndim == 2, cupy.cuda.get_allocator()))
        return put(x)

    monkeypatch.setattr(cupy, "asarray", record)
    pool = cupy.cuda.get_allocator()
    RoPE(base=123.0).rotate(on_host(np.ones((3, 2, 8), np.float32)), [5, 6, 7])
    with cupy.cuda.using_allocator(None):
        raw = cupy.cuda.get_allocator()
    assert raw is not pool
    assert [allocator for is_table, allocator in allocators if is_table] == [raw] * 3
    assert allocators[0] == (False, pool)  # positions


def test_slots_within_results_are_refused(host):
    memory = np.zeros((1, 3, 4, 8), np.float32)
    q, cache = on_host(memory), on_host(np.zeros((16, 2, 8), np.float32))
    slots = on_host(memory.reshape(-1)[:3].view(np.int32))
    k = on_host(np.ones((1, 3, 2, 8), np.float32))
    with pytest.raises(rope_xp.RopeError, match=r"out\[0\] overlaps slots; pass"):
        rope_xp.apply(q, k, slots=slots, out=(q, cache))
    x = on_host(memory[0])
    with pytest.raises(rope_xp.RopeError, match="out overlaps slots; pass"):
        RoPE().rerotate(x, [1, 2, 3], [4, 5, 6], slots=slots, out=x)


def test_graphs_keep_the_tables_that_they_read(host, monkeypatch):
    monkeypatch.setattr(caches, "PINNED", {})
    x = on_host(np.ones((3, 2, 8), np.float32))
    RoPE().rotate(x, [5, 6, 7])
    assert not caches.PINNED
    monkeypatch.setattr(STREAM, "is_capturing", lambda: True)
    for _ in range(2):
        RoPE().rotate(x, [5, 6, 7])
        assert len(caches.PINNED) == 3 + 1  # digits, and frequencies


def test_strided_components_are_declined_and_libraries_do_not_mix(host):
    x = on_host(np.ones((3, 2, 8), np.float32))
    wide = on_host(np.ones((3, 2, 16), np.float32))
    for strided in (wide[..., ::2], wide[..., 7::-1]):
        declined = dict(rope_xp.explain(strided, strided).declined)
        assert declined["cuda"] == "the last axis of an array is not contiguous"
        with rope_xp.use_path("cuda"), pytest.raises(rope_xp.RopeError, match="not contiguous"):
            RoPE().rotate(x, out=strided)
    with pytest.raises(TypeError, match="q is a numpy array and k a cupy array"):
        rope_xp.apply(read(x), x)
