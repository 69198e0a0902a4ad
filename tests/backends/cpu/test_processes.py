"""Kernels as processes have them: compiled late, not at all, from files, in forked children."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rope_xp_backends.cpu import compiled, launch
from rope_xp_backends.numpy import paths
from support.exhaustive import exhaustive
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._contract import caches
from rope_xp._dispatch.kernels import Kernels

pytest.importorskip("numba")

POSITIONS = np.arange(130) * 1000


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    caches.ALL["rope_xp._dispatch.bound._kinds"].cache_clear()  # which are bound to kernels
    fresh: Any = Kernels("numba", compiled._load)
    for module in (launch, paths):
        monkeypatch.setattr(module, "KERNELS", fresh)


def sample(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def python(script: Path, code: str, *arguments: str, **environment: str) -> str:
    script.write_text(code)
    command = [sys.executable, "-W", "error", str(script), *arguments]
    environment = os.environ | environment
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FORKS = """
import multiprocessing, os, sys, threading, warnings
import numpy as np, rope_xp
from rope_xp._contract import forks
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.numpy import chunks

launch.BYTES_A_THREAD, chunks.CHUNK_BYTES = 1, 1 << 10
# Python 3.12 warns of every fork beside threads, which is what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)

def right(path):
    results = []
    for name in (path, "portable"):
        with rope_xp.use_backend(name):
            results.append(rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32)))
    return np.array_equal(*results) and threads._pool is not None

def child(path):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if right(path) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

if __name__ == "__main__":
    path = sys.argv[1]
    compiling = threading.Thread(target=right, args=(path,))
    compiling.start()
    while path == "numba" and forks.SLOW.acquire(blocking=False):
        forks.SLOW.release()
    assert child(path), "forked while a thread compiled"
    compiling.join()
    assert right(path) and child(path) and right(path), "forked beside a pool"
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(right, [path] * 4) == [True] * 4, method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("path", [exhaustive("numba"), "chunked"])
def test_processes_forked_and_spawned(path: str, tmp_path: Path) -> None:
    python(tmp_path / "forks.py", FORKS, path, ROPE_XP_NUM_THREADS="3")


AT_EXIT = """
import atexit, sys
import numpy as np, rope_xp
from rope_xp_backends.numpy import chunks

chunks.CHUNK_BYTES = 1 << 10

def rotate(path):
    with rope_xp.use_backend(path):
        return rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32))

if sys.argv[1] == "beside a pool":
    rotate("chunked")
# Once the main thread is done, pools take no more work, and these functions are called.
atexit.register(lambda: print(np.array_equal(rotate("chunked"), rotate("portable"))))
"""


@pytest.mark.parametrize("pool", ["beside a pool", "without a pool"])
def test_a_rotation_while_the_interpreter_shuts_down(pool: str, tmp_path: Path) -> None:
    assert python(tmp_path / "at_exit.py", AT_EXIT, pool, ROPE_XP_NUM_THREADS="3") == "True"


def test_numba_that_cannot_be_imported(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    package = importlib.import_module("rope_xp_backends.cpu")
    monkeypatch.delattr(package, "kernel", raising=False)
    monkeypatch.setitem(sys.modules, "rope_xp_backends.cpu.kernel", None)
    monkeypatch.setattr(launch, "BYTES_TO_COMPILE_FOR", 1)
    x = sample(rng, 130, 2, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    with pytest.warns(RuntimeWarning, match="goes on without numba.*cannot be imp") as caught:
        np.testing.assert_array_equal(RoPE().rotate(x, POSITIONS), expected)
    assert len(caught) == 1
    np.testing.assert_array_equal(
        RoPE().rotate(x, POSITIONS), expected
    )  # a second warning would be an error
    explanation = rope_xp.explain(x, x, POSITIONS)
    assert explanation.path == "chunked"
    assert "numba cannot be imported" in dict(explanation.declined)["numba"]
    with rope_xp.use_backend("numba"), pytest.raises(RopeError, match="cannot be imported"):
        RoPE().rotate(x, POSITIONS)


def test_objects_of_numpy_that_are_laid_out_in_another_way(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read the address of elements where C code finds it. Where it is not, none runs."""
    from rope_xp_backends.cpu import kernel

    monkeypatch.setattr(kernel, "HEAD", kernel.HEAD + 8)
    with (
        rope_xp.use_backend("numba"),
        pytest.warns(RuntimeWarning, match="laid out in another way"),
        pytest.raises(RopeError, match="laid out in another way"),
    ):
        RoPE().rotate(np.ones((3, 2, 8)))


def test_a_second_kernel_that_fails_finds_nothing_written(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    kernels = importlib.import_module("rope_xp_backends.cpu.kernel")
    compiled = kernels.compiled

    def only_float32(dtype: str, *pairs: bool) -> Callable[..., None]:
        if dtype != "float32":
            raise SystemError(dtype)
        return compiled(dtype, *pairs)

    monkeypatch.setattr(kernels, "compiled", only_float32)
    monkeypatch.setattr(launch, "BYTES_TO_COMPILE_FOR", 1)
    q, k = sample(rng, 130, 4, 16), sample(rng, 130, 2, 16, dtype="float16")
    expected = truth(rope_xp.apply, q, k, POSITIONS)
    with pytest.warns(
        RuntimeWarning, match="without a kernel of numba. numba cannot compile its kernel: float16"
    ):
        rope_xp.apply(q, k, POSITIONS, out=(q, k))
    assert len(launch.KERNELS._made) == 1
    np.testing.assert_array_equal(q, expected[0])
    np.testing.assert_array_equal(k, expected[1])


def test_small_calls_do_not_compile(nothing_compiled: None) -> None:
    small = np.ones((1, 2, 3, 16), np.float32)
    explanation = rope_xp.explain(small, small)
    assert explanation.path == "chunked"
    assert f"have {2 * small.nbytes} bytes" in dict(explanation.declined)["numba"]
    RoPE().rotate(small)
    assert not launch.KERNELS._made
    large = np.ones((1, 2048, 4, 64), np.float32)
    assert 2 * large.nbytes == launch.BYTES_TO_COMPILE_FOR
    assert rope_xp.explain(large[..., :62], large[..., :62]).path == "chunked"
    assert rope_xp.explain(large, large).path == "numba"
    RoPE().apply(large, large)
    assert len(launch.KERNELS._made) == 1
    assert rope_xp.explain(small, small).path == "numba"
    assert rope_xp.explain(small, small, layout="half").path == "chunked"
    with rope_xp.use_backend("numba"):
        RoPE(layout="half").rotate(small)
    assert rope_xp.explain(small, small, layout="half").path == "numba"
    assert rope_xp.explain(small, small.astype(np.float64)).path == "chunked"


def test_neither_import_nor_a_small_call_imports_numba(tmp_path: Path) -> None:
    small = "import sys, numpy as np, rope_xp; rope_xp.RoPE().rotate(np.ones((3, 2, 8)))"
    assert python(tmp_path / "small.py", f"{small}; print('numba' in sys.modules)") == "False"


# Kernels for float16 and bfloat16 have the same types in numba, but must not be taken for another.
ROTATE = """
import sys
import ml_dtypes, numpy as np, rope_xp
from rope_xp_backends.cpu.compiled import KERNELS
for dtype in sys.argv[1:]:
    for layout in ("half", "interleaved"):
        x, rope = np.arange(48.0).reshape(3, 2, 8).astype(dtype), rope_xp.RoPE(layout=layout)
        with rope_xp.use_backend("numba"):
            got = rope.rotate(x)
        with rope_xp.use_backend("portable"):
            assert np.array_equal(got, rope.rotate(x)), (dtype, layout)
print(sum(kernel.stats.cache_hits.total() for kernel in KERNELS._made.values()))
"""


@pytest.mark.exhaustive  # each of four processes compiles kernels
def test_kernels_are_kept_in_files_where_asked_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def run(*dtypes: str, keep: str) -> tuple[str, set[str]]:
        kept = {"ROPE_XP_NUMBA_CACHE": keep, "NUMBA_CACHE_DIR": str(cache)}
        hits = python(tmp_path / "rotate.py", ROTATE, *dtypes, **kept)
        return hits, {file.name for file in cache.rglob("*") if file.is_file()}

    assert run("float16", keep="0") == ("0", set())
    hits, files = run("float16", keep="1")
    assert hits == "0"
    assert files
    hits, files = run("bfloat16", keep="1")
    assert hits == "0"
    assert run("float16", "bfloat16", keep="1") == ("4", files)


SHARED_MEMORY = """
import threading
import numpy as np, rope_xp

wrong = []

def rotate(seed):
    random = np.random.default_rng(seed)
    x, positions = random.standard_normal((600, 4, 128)), random.integers(0, 10**5, 600)
    with rope_xp.use_backend("chunked"):
        want = rope_xp.RoPE().rotate(x.astype(np.float32), positions)
    for _ in range(40):
        with rope_xp.use_backend("numba"):
            got = rope_xp.RoPE().rotate(x.astype(np.float32), positions)
        wrong.extend([seed] * (not np.array_equal(got, want)))

threads = [threading.Thread(target=rotate, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(wrong))
"""


def test_memory_of_a_kernel_is_its_own(tmp_path: Path) -> None:
    """Held until it returns: threads that allocate from one heap would be given it otherwise."""
    assert python(tmp_path / "shared.py", SHARED_MEMORY, MALLOC_ARENA_MAX="1") == "0"
