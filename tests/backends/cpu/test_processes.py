"""Kernels as processes have them: compiled late, not at all, from files, in forked children."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rope_xp_backends.cpu import compiled, files
from rope_xp_backends.cpu.plan import Form
from rope_xp_backends.numpy import paths
from support.exhaustive import exhaustive
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.kernels import Kernels

pytest.importorskip("llvmlite")

POSITIONS = np.arange(130) * 1000


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    call_cache.CALLS.cache_clear()  # which are bound to kernels
    fresh: Any = Kernels("llvmlite", compiled._load)
    monkeypatch.setattr(paths, "KERNELS", fresh)


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
    while path == "llvm" and forks.SLOW.acquire(blocking=False):
        forks.SLOW.release()
    assert child(path), "forked while a thread compiled"
    compiling.join()
    assert right(path) and child(path) and right(path), "forked beside a pool"
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(right, [path] * 4) == [True] * 4, method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("path", [exhaustive("llvm"), "chunked"])
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


def test_llvm_that_cannot_be_imported(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    package = importlib.import_module("rope_xp_backends.cpu")
    monkeypatch.delattr(package, "machine", raising=False)
    monkeypatch.setitem(sys.modules, "rope_xp_backends.cpu.machine", None)
    x = sample(rng, 130, 2, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    with pytest.warns(RuntimeWarning, match="goes on without llvmlite.*cannot be imp") as caught:
        np.testing.assert_array_equal(RoPE().rotate(x, POSITIONS), expected)
    assert len(caught) == 1
    np.testing.assert_array_equal(
        RoPE().rotate(x, POSITIONS), expected
    )  # a second warning would be an error
    explanation = rope_xp.explain(x, x, POSITIONS)
    assert explanation.path == "chunked"
    assert "llvmlite cannot be imported" in dict(explanation.declined)["llvm"]
    with rope_xp.use_backend("llvm"), pytest.raises(RopeError, match="cannot be imported"):
        RoPE().rotate(x, POSITIONS)


def test_objects_of_numpy_that_are_laid_out_in_another_way(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read the address of elements where C code finds it. Where it is not, none runs."""
    machine = importlib.import_module("rope_xp_backends.cpu.machine")
    monkeypatch.setattr(machine, "HEAD", machine.HEAD + 8)
    with (
        rope_xp.use_backend("llvm"),
        pytest.warns(RuntimeWarning, match="laid out in another way"),
        pytest.raises(RopeError, match="laid out in another way"),
    ):
        RoPE().rotate(np.ones((3, 2, 8)))


def test_a_second_kernel_that_fails_finds_nothing_written(
    nothing_compiled: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    machine = importlib.import_module("rope_xp_backends.cpu.machine")
    compiled_form = machine.compiled

    def only_float32(form: Form) -> Callable[..., int]:
        if form.dtype != "float32":
            raise SystemError(form.dtype)
        return compiled_form(form)

    monkeypatch.setattr(machine, "compiled", only_float32)
    q, k = sample(rng, 130, 4, 16), sample(rng, 130, 2, 16, dtype="float16")
    expected = truth(rope_xp.apply, q, k, POSITIONS)
    with pytest.warns(
        RuntimeWarning,
        match="without a kernel of llvmlite. llvmlite cannot compile its kernel: float16",
    ):
        rope_xp.apply(q, k, POSITIONS, out=(q, k))
    assert len(paths.KERNELS._made) == 1
    np.testing.assert_array_equal(q, expected[0])
    np.testing.assert_array_equal(k, expected[1])


def test_the_first_call_compiles_however_small(nothing_compiled: None) -> None:
    small = np.ones((1, 1, 3, 16), np.float32)
    assert rope_xp.explain(small, small).path == "llvm"
    assert not paths.KERNELS._made
    RoPE().rotate(small)
    assert list(paths.KERNELS._made) == [Form("float32", True, True)]


def test_import_imports_no_compiler(tmp_path: Path) -> None:
    code = "import sys, numpy, rope_xp, rope_xp_backends.numpy; print('llvmlite' in sys.modules)"
    assert python(tmp_path / "import.py", code) == "False"


ROTATE = """
import sys
import ml_dtypes, numpy as np, rope_xp
from rope_xp_backends.cpu import machine
made, translated = [], machine._translated
machine._translated = lambda form, target: made.append(form) or translated(form, target)
for dtype in sys.argv[1:]:
    for layout in ("half", "interleaved"):
        x, rope = np.arange(48.0).reshape(3, 2, 8).astype(dtype), rope_xp.RoPE(layout=layout)
        with rope_xp.use_backend("llvm"):
            got = rope.rotate(x)
        with rope_xp.use_backend("portable"):
            assert np.array_equal(got, rope.rotate(x)), (dtype, layout)
print(len(made))
"""


def compiled_by_a_process(script: Path, *dtypes: str, **environment: str) -> int:
    """Return how many kernels a process compiles, which rotates arrays of these dtypes right."""
    return int(python(script, ROTATE, *dtypes, **environment))


def kept(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def test_kernels_are_kept_for_the_next_process(tmp_path: Path) -> None:
    script, cache = tmp_path / "rotate.py", tmp_path / "cache"

    def run(*dtypes: str) -> int:
        return compiled_by_a_process(script, *dtypes, ROPE_XP_KERNEL_CACHE=str(cache))

    assert run("float16") == 2
    assert [file.name for file in kept(cache)] == ["float16-00", "float16-11"]
    assert run("bfloat16", "float16") == 2
    first, *_ = kept(cache)
    whole = first.read_bytes()
    for broken in (b"", whole[:-1], whole[:99] + b"?" + whole[100:]):
        first.write_bytes(broken)
        assert run("bfloat16", "float16") == 1
        assert first.read_bytes() == whole
    assert run("bfloat16", "float16") == 0


def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    script, cache = tmp_path / "rotate.py", tmp_path / "cache"
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                compiled_by_a_process,
                tmp_path / f"rotate{i}.py",
                "float32",
                ROPE_XP_KERNEL_CACHE=str(cache),
            )
            for i in range(3)
        ]
        assert all(run.result() in (0, 1, 2) for run in runs)
    assert [file.name for file in kept(cache)] == ["float32-00", "float32-11"]
    assert compiled_by_a_process(script, "float32", ROPE_XP_KERNEL_CACHE=str(cache)) == 0


def test_kernels_that_cannot_be_kept(tmp_path: Path) -> None:
    script, caches = tmp_path / "rotate.py", tmp_path / "caches"
    assert compiled_by_a_process(script, "float32", XDG_CACHE_HOME=str(caches)) == 2
    assert compiled_by_a_process(script, "float32", XDG_CACHE_HOME=str(caches)) == 0
    ours = caches / "rope_xp"
    for mode in (0o777, 0o720):  # others may write: who knows what is there
        ours.chmod(mode)
        assert compiled_by_a_process(script, "float32", XDG_CACHE_HOME=str(caches)) == 2
    nowhere = tmp_path / "a file"
    nowhere.write_text("")
    for place in ({"XDG_CACHE_HOME": str(nowhere)}, {"ROPE_XP_KERNEL_CACHE": "0"}):
        assert compiled_by_a_process(script, "float32", **place) == 2
    assert len(kept(caches)) == 2


def test_folders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", str(tmp_path))
    files.keep("digest", "kernel", b"code")
    assert files.read("digest", "kernel") == b"code"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert files.read("digest", "kernel") is None


def test_what_kernels_are_written_by_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = importlib.import_module("rope_xp_backends.cpu.machine")
    before = machine._digest()
    names = ("kernel.py", "pairs.py", "angles.py", "plan.py", "language.py")
    assert all(
        Path(files.__file__).with_name(name).read_bytes() in files.sources() for name in names
    )
    changed = [*files.sources()[1:], b"other"]
    monkeypatch.setattr(files, "sources", lambda: changed)
    assert machine._digest.__wrapped__() != before


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
        with rope_xp.use_backend("llvm"):
            got = rope_xp.RoPE().rotate(x.astype(np.float32), positions)
        wrong.extend([seed] * (not np.array_equal(got, want)))

threads = [threading.Thread(target=rotate, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(wrong))
"""


def test_memory_of_a_kernel_is_its_own(tmp_path: Path) -> None:
    """Held until it returns: threads that allocate from one heap would be given it otherwise."""
    assert python(tmp_path / "shared.py", SHARED_MEMORY, MALLOC_ARENA_MAX="1") == "0"
