"""Rotations of arrays that lie against pages nobody may touch: what reads beyond them crashes.

python tests/support/guarded.py native|streaming|norm|cuda|triton [EVERY]
"""

import contextlib
import ctypes
import importlib
import mmap
import sys
from functools import lru_cache, partial
from itertools import islice, product

import numpy as np

import rope_xp
from rope_xp import RoPE
from rope_xp._dispatch.backend import put_tables
from support import cuda_on_cpu
from support.equality import LAYOUTS
from support.fuzz.memory import as_torch
from support.targets import ALL_FLOATS, give_cpu_to_triton, lent, numpy_dtype, truth

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 0  # PROT_NONE
# head_dim, rotary_dim, rotary_offset
WIDTHS = ((8, 8, 0), (6, 6, 0), (12, 8, 2), (96, 96, 0), (128, 64, 32))
SHAPES = {"bshd": (2, 5, -1), "bhsd": (2, -1, 5), "shd": (7, -1)}
HEADS = ((3, 1), (8, 2))


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


@contextlib.contextmanager
def running(path):
    """Yield the glue whose arrays take the path, and what makes such an array."""
    numpy_glue = importlib.import_module("rope_xp_backends.numpy")
    with lent(cuda_on_cpu.PATH if path == "cuda" else None):
        if path != "triton":
            yield numpy_glue.BACKEND, np.asarray
            return
        glue = importlib.import_module("rope_xp_backends.torch")
        give_cpu_to_triton()
        yield glue.BACKEND, as_torch


def cases():
    random = np.random.default_rng(0)
    for layout, dtype, (head_dim, rotary_dim, offset) in product(LAYOUTS, ALL_FLOATS, WIDTHS):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        for (axes, shape), heads in product(SHAPES.items(), HEADS):
            at = [shape[axes.index(axis)] for axis in ("bs" if "b" in axes else "s")]
            arrays = [
                random.standard_normal((*(n if size < 0 else size for size in shape), head_dim))
                for n in heads
            ]
            for kind in (np.int32, np.int64):
                positions = random.integers(-(1 << 31) + 1, 1 << 31, at).astype(kind)
                yield rope, axes, [x.astype(numpy_dtype(dtype)) for x in arrays], positions
            yield rope, axes, [x.astype(numpy_dtype(dtype)) for x in arrays], None


def main(path, every="1"):
    count, norm, normalizes = 0, None, path == "norm"
    path = "native" if normalizes else path
    if path == "streaming":
        path = "native"
        native = importlib.import_module("rope_xp_backends.cpu._native")
        native.tune("large_bytes", 1)
        native.tune("release_bytes", 1)
    with running(path) as (backend, own):
        for end in (False, True):
            put = partial(against, end)
            backend.asarray = lambda host, device, put=put: own(put(np.asarray(host)))
            tables = lru_cache(partial(put_tables, backend, device=None))
            backend.tables = lambda *which, tables=tables: tables(*which[:-1])
            for rope, axes, arrays, positions in islice(cases(), 0, None, int(every)):
                if normalizes:
                    weights = [put(x[(0,) * (x.ndim - 1)].copy()) for x in arrays]
                    norm = rope_xp.QKNorm(*map(own, weights), eps=0.1)
                options = {"axes": axes, "norm": norm}
                expected = [x.copy() for x in arrays]
                written = tuple(own(x) for x in expected)
                truth(rope.apply, *map(own, arrays), positions, out=written, **options)
                q, k, q_out, k_out = (put(x) for x in (*arrays, *arrays))
                at = None if positions is None else own(put(positions))
                with rope_xp.use_path(path):
                    rope.apply(own(q), own(k), at, out=(own(q_out), own(k_out)), **options)
                    rope.apply(own(q), own(k), at, out=(own(q), own(k)), **options)
                for got, right in zip((q, k, q_out, k_out), (*expected, *expected), strict=True):
                    # The interpreter cuts float32 off to bfloat16.
                    cut = path == "triton" and got.dtype.name == "bfloat16"
                    whole = np.dtype(f"i{got.itemsize}")
                    off = np.abs(got.view(whole) - right.view(whole)).max()
                    assert off <= cut, (path, rope, axes, got.dtype, off)
                count += 2
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
