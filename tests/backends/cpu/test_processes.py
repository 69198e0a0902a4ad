"""Kernels as processes have them: in forked children, at exit, short of memory or threads."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.programs import HERE, printed, run

pytestmark = pytest.mark.usefixtures("native")


def python(code, *arguments, **environment):
    return run("-W", "error", "-c", code, *arguments, **environment).strip()


FORKS = """
import multiprocessing, os, threading, warnings
import numpy as np, rope_xp
from rope_xp_backends.cpu import _native

_native.tune("thread_elements", 1)
# Python 3.12 warns of every fork beside threads, which is what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)

def right(_=None):
    x = np.ones((2, 130, 4, 16), np.float32)
    with rope_xp.use_path("portable"):
        want = rope_xp.RoPE().rotate(x)
    return np.array_equal(rope_xp.RoPE().rotate(x), want)

def child():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if right() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

if __name__ == "__main__":
    over = threading.Event()
    calls = threading.Thread(target=lambda: [right() for _ in iter(over.is_set, True)])
    calls.start()
    assert all([child() for _ in range(20)]), "forked during calls"
    over.set()
    calls.join()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(right, range(4)) == [True] * 4, method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_and_spawned_processes_rotate_beside_calls(tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    printed(tmp_path / "forks.py", options=("-W", "error"), ROPE_XP_NUM_THREADS="3")


AT_EXIT = """
import atexit, itertools, threading
import numpy as np, rope_xp
from rope_xp_backends.cpu import _native

_native.tune("thread_elements", 1)
_native.tune("release_bytes", 1)

def rotate(path):
    with rope_xp.use_path(path):
        return rope_xp.RoPE().rotate(np.ones((2, 130, 4, 16), np.float32))

def rotate_for_ever():
    for _ in itertools.count():
        rotate("native")

for _ in range(2):
    threading.Thread(target=rotate_for_ever, daemon=True).start()
atexit.register(lambda: print(np.array_equal(rotate("native"), rotate("portable"))))
"""


def test_rotations_while_the_interpreter_shuts_down_are_right():
    """And threads that rotate until then do no harm."""
    assert python(AT_EXIT, ROPE_XP_NUM_THREADS="3") == "True"


FIRST_CALLS = """
import threading
import numpy as np, rope_xp

x = np.random.default_rng(0).standard_normal((256, 4, 32), np.float32)
positions = np.arange(256) * 4000
results = {}

def rotate(i):
    start.wait(20)
    results[i] = rope.rotate(x, positions + i)

for base in range(1000, 1200):
    rope, start = rope_xp.RoPE(base=base), threading.Barrier(2)
    threads = [threading.Thread(target=rotate, args=(i,)) for i in range(2)]
    [t.start() for t in threads]; [t.join() for t in threads]
    with rope_xp.use_path("portable"):
        for i in range(2):
            assert np.array_equal(results.pop(i), rope.rotate(x, positions + i))
"""


def test_two_threads_may_be_the_first_to_use_a_rope():
    """And have kernels allocate from one heap."""
    python(FIRST_CALLS, MALLOC_ARENA_MAX="1")


KEPT = """
import pathlib
import numpy as np, rope_xp

def measure():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4

def call(head_dim):
    base = np.zeros((200, 200, 4, 4, 1, head_dim), np.float32)
    rope_xp.RoPE().rotate(base[::2, ::2, ::2, ::2, :, :4])

call(6), call(34)
before = measure()
for head_dim in range(8, 34, 2):
    call(head_dim)
print(measure() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc tells resident memory")
def test_calls_whose_axes_do_not_collapse_leave_no_memory_behind():
    assert int(python(KEPT)) < 10_000


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """The environment of processes in which threads and memory are short, see failing.cpp."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    command = ["g++", "-shared", "-fPIC", "-O1", HERE / "failing.cpp", "-o", library]
    subprocess.run(command, check=True, timeout=100)
    return {"LD_PRELOAD": str(library), "ROPE_XP_NUM_THREADS": "7"}


FEW_THREADS = """
import ctypes
import numpy as np, rope_xp
from rope_xp_backends.cpu import _native

_native.tune("thread_elements", 1)
asked, one_in = (ctypes.c_int.in_dll(ctypes.CDLL(None), n) for n in ("threads", "threads_a_start"))
x = np.random.default_rng(0).standard_normal((2, 130, 4, 16))
with rope_xp.use_path("portable"):
    want = rope_xp.RoPE().rotate(x)
for one_in.value in (1, 0, 2, 3) * 5:
    asked.value, y = 0, x.copy()
    rope_xp.RoPE().rotate(y, out=y)
    assert asked.value == 6
    assert np.array_equal(y, want)
"""


def test_parts_run_once_where_threads_cannot_start(failing):
    python(FEW_THREADS, **failing)


LITTLE_MEMORY = """
import ctypes, sys
import numpy as np, rope_xp
from rope_xp_backends.cpu import _native

_native.tune("thread_elements", int(sys.argv[1]))
least = ctypes.c_size_t.in_dll(ctypes.CDLL(None), "smallest_that_fails")
raised = []
for head_dim in (64, 8192):
    rope, norm = rope_xp.RoPE(layout="half"), (np.ones(head_dim), 1e-6)
    x = np.random.default_rng(0).standard_normal((2, 70, 4, head_dim))
    with rope_xp.use_path("portable"):
        want = rope.rotate(x, norm=norm)
    for y in (x.copy(), x.copy(), x.copy()):  # has tables, and what caches hold of calls
        rope.rotate(y, out=y, norm=norm)
    for size in (1 << 14, 1 << 12, 1 << 10, 513) * 3:  # Python has the smaller ones itself
        y = x.copy()
        try:
            least.value = size
            rope.rotate(y, out=y, norm=norm)
        except MemoryError:
            least.value = 2**64 - 1
            assert np.array_equal(y, x)
            raised.append(head_dim)
            rope.rotate(y, out=y, norm=norm)
        least.value = 2**64 - 1
        assert np.array_equal(y, want)
print(*sorted(set(raised)))
"""


@pytest.mark.parametrize("thread_elements", [1, 1 << 20])
def test_calls_that_get_no_memory_are_right_or_raise_and_have_written_nothing(
    failing, thread_elements
):
    assert python(LITTLE_MEMORY, thread_elements, **failing) == "8192"
