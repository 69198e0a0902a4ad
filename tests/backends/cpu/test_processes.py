"""Kernels as processes have them: compiled late, not at all, in forked children."""

import importlib
import os

import numpy as np
import pytest
from rope_xp_backends.cpu import launch
from rope_xp_backends.numpy import paths
from support.bits import same, sample
from support.exhaustive import exhaustive
from support.programs import printed, run
from support.targets import truth

import rope_xp
from rope_xp._dispatch import call_cache
from rope_xp._dispatch.kernels import Kernels

pytest.importorskip("llvmlite")
machine = importlib.import_module("rope_xp_backends.cpu.machine")

POSITIONS = np.arange(130) * 1000


def python(code, *arguments, **environment):
    return run("-W", "error", "-c", code, *arguments, **environment).strip()


FORKS = """
import multiprocessing, os, sys, threading, warnings
import numpy as np, rope_xp
from rope_xp._core import forks
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.numpy import paths

launch.ELEMENTS_A_THREAD, paths.CHUNK_BYTES = 1, 1 << 10
# Python 3.12 warns of every fork beside threads, which is what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)

def right(path):
    results = []
    for name in (path, "portable"):
        with rope_xp.use_path(name):
            results.append(rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32)))
    return np.array_equal(*results) and len(threads._workers) > 0

def child(path):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if right(path) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

if __name__ == "__main__":
    path = sys.argv[1]
    compiling = threading.Thread(target=right, args=(path,))
    compiling.start()
    while path == "llvm" and forks.IMPORT_LOCK.acquire(blocking=False):
        forks.IMPORT_LOCK.release()
    assert child(path), "forked while a thread compiled"
    compiling.join()
    assert right(path) and child(path) and right(path), "forked beside a pool"
    over = threading.Event()
    calls = threading.Thread(target=lambda: [right(path) for _ in iter(over.is_set, True)])
    calls.start()
    assert all([child(path) for _ in range(5)]), "forked during calls"
    over.set()
    calls.join()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(right, [path] * 4) == [True] * 4, method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("path", [exhaustive("llvm"), "chunked"])
def test_forked_and_spawned_processes_rotate_beside_pools_and_compilations(path, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    printed(tmp_path / "forks.py", path, options=("-W", "error"), ROPE_XP_NUM_THREADS="3")


AT_EXIT = """
import atexit
import numpy as np, rope_xp
from rope_xp_backends.numpy import paths

paths.CHUNK_BYTES = 1 << 10

def rotate(path):
    with rope_xp.use_path(path):
        return rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32))

rotate("chunked")
# Once the main thread is done, pools take no more work, and these functions are called.
atexit.register(lambda: print(np.array_equal(rotate("chunked"), rotate("portable"))))
"""


def test_rotations_while_the_interpreter_shuts_down_are_right():
    assert python(AT_EXIT, ROPE_XP_NUM_THREADS="3") == "True"


def test_a_second_kernel_that_fails_finds_nothing_written(monkeypatch, rng):
    call_cache.CALLS.cache_clear()  # which are bound to kernels
    monkeypatch.setattr(paths, "KERNELS", Kernels("llvmlite", launch._load_compiler))
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
    same((q, k), expected)


NOTHING_STORED = """
import os, sys
import numpy as np, rope_xp

folder, touched = sys.argv[1], []
sys.addaudithook(lambda event, arguments: folder in repr(arguments) and touched.append(event))
for x in (np.ones((3, 2, 8), np.float32), np.ones((3, 2, 8))):
    with rope_xp.use_path("llvm"):
        rope_xp.RoPE().rotate(x)
print([*touched], os.listdir(folder))
"""


def test_kernels_are_neither_stored_nor_read(tmp_path):
    """Whoever could write such a file could run code here."""
    names = ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE", "ROPE_XP_KERNEL_CACHE")
    places = dict.fromkeys(names, str(tmp_path))
    assert python(NOTHING_STORED, tmp_path, **places) == "[] []"


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


def test_memory_of_a_kernel_is_its_own_until_it_returns():
    """Threads that allocate from one heap would be given it otherwise."""
    assert python(SHARED_MEMORY, MALLOC_ARENA_MAX="1") == "0"
