"""Kernels as processes have them: compiled late, not at all, from files, in forked children."""

import compileall
import importlib
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rope_xp_backends.cpu import files, launch
from rope_xp_backends.cpu.plan import KernelKey
from rope_xp_backends.numpy import paths
from support.bits import same, sample
from support.exhaustive import exhaustive
from support.programs import printed
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.kernels import Kernels

pytest.importorskip("llvmlite")
machine = importlib.import_module("rope_xp_backends.cpu.machine")

POSITIONS = np.arange(130) * 1000


@pytest.fixture
def nothing_compiled(monkeypatch):
    call_cache.CALLS.cache_clear()  # which are bound to kernels
    monkeypatch.setattr(paths, "KERNELS", Kernels("llvmlite", launch._load_compiler))


def python(script, code, *arguments, **environment):
    script.write_text(code)
    return printed(script, *arguments, options=("-W", "error"), **environment).strip()


FORKS = """
import multiprocessing, os, sys, threading, warnings
import numpy as np, rope_xp
from rope_xp._core import forks
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.numpy import chunks

launch.BYTES_A_THREAD, chunks.CHUNK_BYTES = 1, 1 << 10
# Python 3.12 warns of every fork beside threads, which is what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)

def right(path):
    results = []
    for name in (path, "portable"):
        with rope_xp.use_path(name):
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
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(right, [path] * 4) == [True] * 4, method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("path", [exhaustive("llvm"), "chunked"])
def test_processes_forked_and_spawned(path, tmp_path):
    python(tmp_path / "forks.py", FORKS, path, ROPE_XP_NUM_THREADS="3")


AT_EXIT = """
import atexit, sys
import numpy as np, rope_xp
from rope_xp_backends.numpy import chunks

chunks.CHUNK_BYTES = 1 << 10

def rotate(path):
    with rope_xp.use_path(path):
        return rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32))

if sys.argv[1] == "beside a pool":
    rotate("chunked")
# Once the main thread is done, pools take no more work, and these functions are called.
atexit.register(lambda: print(np.array_equal(rotate("chunked"), rotate("portable"))))
"""


@pytest.mark.parametrize("pool", ["beside a pool", exhaustive("without a pool")])
def test_a_rotation_while_the_interpreter_shuts_down(pool, tmp_path):
    assert python(tmp_path / "at_exit.py", AT_EXIT, pool, ROPE_XP_NUM_THREADS="3") == "True"


def test_llvm_that_cannot_be_imported(nothing_compiled, monkeypatch, rng):
    package = importlib.import_module("rope_xp_backends.cpu")
    monkeypatch.delattr(package, "machine", raising=False)
    monkeypatch.setitem(sys.modules, "rope_xp_backends.cpu.machine", None)
    x = sample(rng, 130, 2, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    with pytest.warns(RuntimeWarning, match="goes on without llvmlite.*cannot be imp") as caught:
        same(RoPE().rotate(x, POSITIONS), expected)
    assert len(caught) == 1
    same(RoPE().rotate(x, POSITIONS), expected)  # a second warning would be an error
    explanation = rope_xp.explain(x, x, POSITIONS)
    assert explanation.path == "chunked"
    assert "llvmlite cannot be imported" in dict(explanation.declined)["llvm"]
    with rope_xp.use_path("llvm"), pytest.raises(RopeError, match="cannot be imported"):
        RoPE().rotate(x, POSITIONS)


def test_arrays_that_are_laid_out_in_another_way(nothing_compiled, monkeypatch, rng):
    """The address of elements is read where CPython has it, else from numpy itself."""
    host = importlib.import_module("rope_xp_backends.numpy.host")
    arrays = [sample(rng, 3, 2, 8), sample(rng, 3, 2, 16)[:, ::-1, 3:11]]
    expected = [x.ctypes.data for x in arrays]
    for has_pointer in (True, False):
        monkeypatch.setattr(host, "_HAS_POINTER", has_pointer)
        assert host.addresses(arrays) == expected
    with pytest.raises(TypeError, match=r"reads a numpy.ndarray; got float64"):
        host.addresses([np.float64(5.5)])


def test_a_second_kernel_that_fails_finds_nothing_written(nothing_compiled, monkeypatch, rng):
    compile_kernel = machine.compile_kernel

    def only_float32(key):
        if key.dtype != "float32":
            raise SystemError(key.dtype)
        return compile_kernel(key)

    monkeypatch.setattr(machine, "compile_kernel", only_float32)
    q, k = sample(rng, 130, 4, 16), sample(rng, 130, 2, 16, dtype="float16")
    expected = truth(rope_xp.apply, q, k, POSITIONS)
    message = "without a kernel of llvmlite. llvmlite cannot compile its kernel: float16"
    with pytest.warns(RuntimeWarning, match=message):
        rope_xp.apply(q, k, POSITIONS, out=(q, k))
    assert len(paths.KERNELS._compiled) == 1
    same(q, expected[0])
    same(k, expected[1])


def test_the_first_call_compiles_however_small(nothing_compiled):
    small = np.ones((1, 1, 3, 16), np.float32)
    assert rope_xp.explain(small, small).path == "llvm"
    assert not paths.KERNELS._compiled
    RoPE().rotate(small)
    assert list(paths.KERNELS._compiled) == [KernelKey("float32", True, True)]


def test_import_imports_no_compiler(tmp_path):
    code = "import sys, numpy, rope_xp, rope_xp_backends.numpy; print('llvmlite' in sys.modules)"
    assert python(tmp_path / "import.py", code) == "False"


ROTATE = """
import numpy as np, rope_xp
from rope_xp_backends.cpu import machine
compiled, optimize = [], machine._optimize
machine._optimize = lambda text, target: compiled.append(text) or optimize(text, target)
x = np.arange(48, dtype=np.float32).reshape(3, 2, 8)
for layout in ("half", "interleaved"):
    with rope_xp.use_path("llvm"):
        got = rope_xp.RoPE(layout=layout).rotate(x)
    with rope_xp.use_path("portable"):
        assert np.array_equal(got, rope_xp.RoPE(layout=layout).rotate(x)), layout
print(len(compiled))
"""


def count_compiled(script, **environment):
    """Return how many of two kernels a process compiles, which rotates arrays right."""
    return int(python(script, ROTATE, **environment))


def list_files(folder):
    return sorted(file for file in folder.rglob("*") if file.is_file())


def test_processes_that_compile_at_once(tmp_path):
    cache = {"ROPE_XP_KERNEL_CACHE": str(tmp_path / "cache")}
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(count_compiled, tmp_path / f"{i}.py", **cache) for i in range(2)]
        assert all(run.result() in (0, 1, 2) for run in runs)
    names = [file.name[:10] for file in list_files(tmp_path / "cache")]
    assert names == ["float32-00", "float32-11"]
    assert count_compiled(tmp_path / "next.py", **cache) == 0


@pytest.fixture
def compile_one(tmp_path, monkeypatch):
    """Compile a kernel, or load it, and return how many were compiled."""
    monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", str(tmp_path))
    optimize = Mock(wraps=machine._optimize)
    monkeypatch.setattr(machine, "_optimize", optimize)

    def run():
        optimize.reset_mock()
        machine.compile_kernel(KernelKey("float32", True, True))
        return optimize.call_count

    return run


def test_damaged_kernels_are_compiled_again(compile_one, tmp_path):
    assert [compile_one(), compile_one()] == [1, 0]
    (file,) = list_files(tmp_path)
    whole = file.read_bytes()
    for broken in (b"", whole[:-1], whole[:99] + b"?" + whole[100:]):
        file.write_bytes(broken)
        assert compile_one() == 1
        assert file.read_bytes() == whole
    assert compile_one() == 0


def test_kernels_that_cannot_be_kept(compile_one, tmp_path, monkeypatch):
    monkeypatch.delenv("ROPE_XP_KERNEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert [compile_one(), compile_one()] == [1, 0]
    for mode in (0o777, 0o720):  # others may write: who knows what is there
        (tmp_path / "caches" / "rope_xp").chmod(mode)
        assert compile_one() == 1
    nowhere = tmp_path / "a file"
    nowhere.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    assert compile_one() == 1
    monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", "0")
    assert compile_one() == 1
    assert len(list_files(tmp_path / "caches")) == 1


def test_kernels_in_folders_of_others(tmp_path, monkeypatch):
    """On Windows, where files have no owner, anybody may have written those outside the profile."""
    inside, outside = tmp_path / "home" / "kernels", tmp_path / "kernels"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (inside, outside):
        monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", str(folder))
        files.write_kernel("kernel", b"code")
        assert files.read_kernel("kernel") == b"code"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert files.read_kernel("kernel") is None
    monkeypatch.delattr(os, "geteuid")
    assert files.read_kernel("kernel") is None
    files.write_kernel("another", b"code")
    assert len(list_files(outside)) == 1
    monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", str(outside / ".." / "home" / "kernels"))
    assert files.read_kernel("kernel") == b"code"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name other folders")
def test_a_relative_folder_for_caches_is_ignored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROPE_XP_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    files.write_kernel("kernel", b"code")
    (file,) = list_files(tmp_path)
    assert file.parent == tmp_path / "home" / ".cache" / "rope_xp"


def test_kernels_that_nobody_uses_are_deleted(tmp_path, monkeypatch):
    """By the writer of a new one; what is not a kernel stays, however old."""
    monkeypatch.setenv("ROPE_XP_KERNEL_CACHE", str(tmp_path))
    for name in ("unused", "used", *map(str, range(40))):
        files.write_kernel(name, b"code")
    (tmp_path / "letter").write_text("")
    long_ago = time.time() - 40 * 24 * 60 * 60
    for file in list_files(tmp_path):
        os.utime(file, (long_ago, long_ago))
    assert files.read_kernel("used") == b"code"
    with ThreadPoolExecutor(8) as pool:  # which all find the same files to delete
        list(pool.map(files.write_kernel, map("new{}".format, range(8)), [b"code"] * 8))
    names = {file.stem for file in list_files(tmp_path)}
    assert names == {"letter", "used", *(f"new{i}" for i in range(8))}


def test_files_are_named_for_all_that_code_depends_on(compile_one, tmp_path, monkeypatch):
    compile_one()
    write, llvm = machine.build_ir, machine.llvm
    cpu = "x86-64" if llvm.get_process_triple().startswith("x86") else "cortex-a35"
    changes = (
        (machine, "build_ir", lambda key: str(write(key)).replace("ret i64 1", "ret i64 2")),
        (llvm, "llvm_version_info", (*llvm.llvm_version_info[:2], 99)),
        (machine.llvmlite, "__version__", "0.0"),
        (llvm, "get_host_cpu_name", lambda: cpu),
        (machine, "_CODE", machine._CODE | {"opt": 1}),
    )
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            assert compile_one() == 1, change[1]
    assert len(list_files(tmp_path)) == 1 + len(changes)


SHARED_MEMORY = """
import threading
import numpy as np, rope_xp

wrong = []

def rotate(seed):
    random = np.random.default_rng(seed)
    x, positions = random.standard_normal((600, 4, 128)), random.integers(0, 10**5, 600)
    with rope_xp.use_path("chunked"):
        want = rope_xp.RoPE().rotate(x.astype(np.float32), positions)
    for _ in range(40):
        with rope_xp.use_path("llvm"):
            got = rope_xp.RoPE().rotate(x.astype(np.float32), positions)
        wrong.extend([seed] * (not np.array_equal(got, want)))

threads = [threading.Thread(target=rotate, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(wrong))
"""


def test_memory_of_a_kernel_is_its_own(tmp_path):
    """Held until it returns: threads that allocate from one heap would be given it otherwise."""
    assert python(tmp_path / "shared.py", SHARED_MEMORY, MALLOC_ARENA_MAX="1") == "0"


@pytest.mark.exhaustive
def test_packages_without_sources(tmp_path):
    """Of .pyc files alone, and in a zip: they find the same code, and another version its own."""
    script, cache, copy = tmp_path / "rotate.py", tmp_path / "cache", tmp_path / "copy"
    for package in (rope_xp, importlib.import_module("rope_xp_backends")):
        folder = Path(str(package.__file__)).parent
        shutil.copytree(folder, copy / folder.name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(place):
        places = {"PYTHONPATH": str(place), "ROPE_XP_KERNEL_CACHE": str(cache)}
        found = python(tmp_path / "where.py", "import rope_xp; print(rope_xp.__file__)", **places)
        assert found.startswith(str(place))
        return count_compiled(script, **places)

    assert run(copy) == 2
    assert run(Path(shutil.make_archive(str(tmp_path / "zipped"), "zip", copy))) == 0
    kernel = copy / "rope_xp_backends" / "cpu" / "kernel.py"
    for new in ("_NO_MEMORY = 1", "_NO_MEMORY = 2"):
        text = kernel.read_text()
        assert "_NO_MEMORY = 1" in text
        kernel.write_text(text.replace("_NO_MEMORY = 1", new))
        compiled = tmp_path / new
        shutil.copytree(copy, compiled)
        assert compileall.compile_dir(compiled, quiet=1, legacy=True)
        for source in compiled.rglob("*.py"):
            source.unlink()
        assert run(compiled) == (0 if new == "_NO_MEMORY = 1" else 2)
