"""Kernels as processes have them: forked, interrupted, at exit, short of memory or threads."""

import os
import shutil
import subprocess

import pytest
from support.cases import slow
from support.programs import HERE, run

pytestmark = pytest.mark.usefixtures("native")
PRELUDE = """
import atexit, ctypes, faulthandler, itertools, multiprocessing, os, random, signal, sys, threading
import time, warnings
from collections import Counter
from contextlib import suppress
import numpy as np, rope_xp
from rope_xp._core import caches
from rope_xp_backends.cpu import _native

# Python 3.12 warns of every fork beside threads, which is what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
x = np.random.default_rng(0).standard_normal((2, 130, 4, 16), np.float32)
rope = rope_xp.RoPE()
with rope_xp.use_path("portable"):
    expected = rope.rotate(x)

def is_right(_=None):
    return np.array_equal(rope.rotate(x), expected)
"""


def python(code, *arguments, **environment):
    return run("-W", "error", "-c", PRELUDE + code, *arguments, **environment).strip()


FORKS = """
_native.tune("thread_elements", 1)
over = threading.Event()
calls = threading.Thread(target=lambda: [is_right() for _ in iter(over.is_set, True)])
calls.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(not is_right())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
over.set()
calls.join()
for method in ("fork", "spawn"):
    with multiprocessing.get_context(method).Pool(2) as pool:
        for y in pool.map(rope.rotate, [x] * 4):
            assert np.array_equal(y, expected), method
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_and_spawned_processes_rotate_beside_calls():
    python(FORKS, ROPE_XP_NUM_THREADS="3")


INTERRUPTED = """
faulthandler.dump_traceback_later(100, exit=True)  # a call that never ends ends the program
draw, parent, children, counts = random.Random(0), os.getpid(), [], Counter()
x = np.resize(x, (1, 4096, 8, 128))  # 16 MiB
with rope_xp.use_path("portable"):
    expected = rope.rotate(x)
y = x.copy()

def call():
    rope.rotate(y, out=y)

def handle(_, frame):
    while frame is not None and frame.f_code is not call.__code__:
        frame = frame.f_back
    if frame is None or os.getpid() != parent:
        return
    counts[kind] += 1
    if kind == "fork":
        children.append(os.fork())
    elif kind == "rotate":
        assert is_right()
    else:
        raise TimeoutError  # an OSError, which much code expects and handles

signal.signal(signal.SIGALRM, handle)
while min(counts[kind] for kind in ("fork", "rotate", "raise")) < 12:
    kind, y[...] = draw.choice(("fork", "rotate", "raise")), x
    signal.setitimer(signal.ITIMER_REAL, 1e-4 + draw.random() * 1e-2)
    with suppress(TimeoutError):
        call()
        assert np.array_equal(y, expected)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.getpid() != parent:
        os._exit(not is_right())
    now = y[0, ::8, 0, :2].copy()  # so few that no thread ends meanwhile
    time.sleep(4e-3)
    assert np.array_equal(now, y[0, ::8, 0, :2]), "a call that was over wrote to its array"
assert not any(os.waitpid(child, 0)[1] for child in children)
"""


@pytest.mark.skipif(os.name != "posix", reason="this system sends no such signals")
def test_handlers_that_raise_fork_or_rotate_run_when_no_part_does():
    python(INTERRUPTED, ROPE_XP_NUM_THREADS="8")


AT_EXIT = """
_native.tune("thread_elements", 1)
_native.tune("release_bytes", 1)
for _ in range(2):
    threading.Thread(target=lambda: [*map(is_right, itertools.count())], daemon=True).start()
atexit.register(lambda: print(is_right()))
"""


def test_rotations_while_the_interpreter_shuts_down_are_right():
    """And threads that rotate until then do no harm."""
    assert python(AT_EXIT, ROPE_XP_NUM_THREADS="3") == "True"


COME_AND_GO = """
caches.MAX_BYTES = 1 << 20  # of tables, so that some are evicted all the time
_native.tune("table_rows", 500)  # whole tables take the place of small ones soon
_native.tune("release_bytes", 1)  # other threads run Python during a call
make = __import__(sys.argv[1]).asarray
draw, bases, positions = random.Random(0), range(1000, 1020), np.arange(130) * 16_000_000
calls = [
    (turn, x[..., :head_dim].astype(dtype))
    for turn in ("rotate", "unrotate") for dtype in ("f4", "f8") for head_dim in (8, 12, 16)
]
with rope_xp.use_path("portable"):
    expected = {
        base: [getattr(rope_xp.RoPE(base=base), turn)(given, positions) for turn, given in calls]
        for base in bases
    }
right = []

def call(rope, order):
    start.wait(20)
    for i in order:
        turn, given = calls[i]
        y = getattr(rope, turn)(make(given.copy()), make(positions.copy()))
        right.append(np.array_equal(np.asarray(y), expected[int(rope.base)][i]))

for _ in range(int(sys.argv[2])):
    rope, start = rope_xp.RoPE(base=draw.choice(bases)), threading.Barrier(2)
    orders = [draw.choices(range(len(calls)), k=10) for _ in range(2)]
    threads = [threading.Thread(target=call, args=(rope, order)) for order in orders]
    [thread.start() for thread in threads]
    time.sleep(draw.random() * 4e-3)
    rope_xp.clear_caches()
    [thread.join() for thread in threads]
assert len(right) == 20 * int(sys.argv[2]) and all(right)
"""


@pytest.mark.parametrize(
    ("library", "ropes"), [("numpy", 50), slow("numpy", 500), slow("torch", 500)]
)
def test_ropes_that_come_and_go_in_threads_read_no_freed_tables(library, ropes):
    """Where malloc overwrites what is freed. Two threads are the first to use each rope."""
    pytest.importorskip(library)
    malloc = {"MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}
    python(COME_AND_GO, library, ropes, **malloc)


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
_native.tune("thread_elements", 1)
asked, one_in = (ctypes.c_int.in_dll(ctypes.CDLL(None), n) for n in ("threads", "threads_a_start"))
for one_in.value in (1, 0, 2, 3) * 5:
    asked.value, y = 0, x.copy()
    rope.rotate(y, out=y)
    assert asked.value == 6
    assert np.array_equal(y, expected)
"""


def test_parts_run_once_where_threads_cannot_start(failing):
    python(FEW_THREADS, **failing)


LITTLE_MEMORY = """
_native.tune("thread_elements", int(sys.argv[1]))
least = ctypes.c_size_t.in_dll(ctypes.CDLL(None), "smallest_that_fails")
raised = set()
for head_dim in (64, 8192):
    norm, x = (np.ones(head_dim), 1e-6), np.resize(x.astype(float), (2, 70, 4, head_dim))
    with rope_xp.use_path("portable"):
        expected = rope.rotate(x, norm=norm)
    rope.rotate(x, norm=norm)  # makes the tables
    for size in (1 << 14, 1 << 12, 1 << 10, 513) * 3:  # Python has the smaller ones itself
        y = x.copy()
        try:
            least.value = size
            rope.rotate(y, out=y, norm=norm)
        except MemoryError:
            least.value = 2**64 - 1
            assert np.array_equal(y, x)
            raised.add(head_dim)
            rope.rotate(y, out=y, norm=norm)
        least.value = 2**64 - 1
        assert np.array_equal(y, expected)
print(*raised)
"""


@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_calls_that_get_no_memory_are_right_or_raise_and_have_written_nothing(failing, elements):
    assert python(LITTLE_MEMORY, elements, **failing) == "8192"
