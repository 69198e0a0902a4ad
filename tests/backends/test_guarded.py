"""Kernels touch no memory beyond an array. A process that touches the pages there ends."""

import ctypes
import importlib
import mmap
import sys
from functools import lru_cache
from itertools import cycle, product

import numpy as np
import pytest
from rope_xp_backends.cpu import native
from support.bits import sample
from support.equality import LAYOUTS, check_result
from support.fuzz.memory import as_torch
from support.programs import run
from support.targets import ALL_FLOATS, rows, truth

from rope_xp import QKNorm, RoPE
from rope_xp._dispatch.backend import put_tables

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 0  # PROT_NONE
# head_dim, rotary_dim, rotary_offset
WIDTHS = ((8, 8, 0), (6, 6, 0), (12, 8, 2), (96, 96, 0), (128, 64, 32))
SHAPES = {"bshd": (2, 5, -1), "bhsd": (2, -1, 5), "shd": (7, -1)}
HEADS = ((3, 1), (8, 2))
KERNELS = "numpy-native", "numpy-cuda", "torch-triton"  # the last in Triton's interpreter alone


def against(end, x):
    """Return a copy of x in memory of its own, which begins behind a page or ends before one."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + page + size):
        if LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), NOBODY):
            raise OSError(ctypes.get_errno(), "mprotect")
    first = page + (size - x.nbytes if end else 0)
    copy = np.frombuffer(memory, x.dtype, x.size, first).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.fixture(params=["", "streaming"])
def streaming(request):
    names = ("large_bytes", "release_bytes") if request.param and native.module else ()
    before = {name: native.module.tune(name, 1) for name in names}
    yield
    for name, value in before.items():
        native.module.tune(name, value)


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ALL_FLOATS)
@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("backend", rows(KERNELS))
@pytest.mark.usefixtures("streaming")
def test_kernels_touch_nothing_beyond_an_array(backend, axes, dtype, layout, end, monkeypatch, rng):
    own = as_torch if backend.module == "torch" else np.asarray
    glue = importlib.import_module(f"rope_xp_backends.{backend.module}").BACKEND
    tables = lru_cache(lambda key: put_tables(glue, key, None))
    monkeypatch.setattr(glue, "asarray", lambda host, _: own(against(end, np.asarray(host))))
    monkeypatch.setattr(glue, "tables", lambda key, _: tables(key))
    kinds = cycle((None, np.int32, np.int64))
    for (width, heads), kind in zip(product(WIDTHS, HEADS), kinds, strict=False):
        head_dim, rotary_dim, offset = width
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        shapes = [(*(n if size < 0 else size for size in SHAPES[axes]), head_dim) for n in heads]
        q, k = arrays = [sample(rng, *shape, dtype=dtype) for shape in shapes]
        at = [q.shape[axes.index(a)] for a in axes if a in "bs"]
        positions = kind and rng.integers(1 - (1 << 31), 1 << 31, at).astype(kind)
        norms = [None]
        if backend.path == "native":  # others need not have the bits of norms
            weights = [against(end, sample(rng, head_dim, dtype=dtype)) for _ in "qk"]
            norms.append(QKNorm(*weights, eps=0.1))
        for norm in norms:
            options = {"axes": axes, "norm": norm}
            expected = truth(rope.apply, q, k, positions, **options)
            given, out = ([own(against(end, x)) for x in arrays] for _ in range(2))
            where = None if kind is None else own(against(end, positions))
            rope.apply(*given, where, out=tuple(out), **options)
            rope.apply(*given, where, out=tuple(given), **options)
            for got, right in zip((*given, *out), (*expected, *expected), strict=True):
                check_result(backend, got, right, right)


@pytest.mark.slow
def test_kernels_of_triton_touch_nothing_beyond_a_tensor():
    """In a process of its own, as Triton reads TRITON_INTERPRET when it is imported."""
    pytest.importorskip("torch")
    if pytest.importorskip("triton").__version__.startswith("3.6."):
        pytest.skip("the interpreter of triton 3.6 fails with numpy 2.4")
    chosen = f"{__file__}::{test_kernels_touch_nothing_beyond_an_array.__name__}"
    options = "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "slow or not slow"
    assert " passed" in run("-m", "pytest", *options, chosen, TRITON_INTERPRET="1")
