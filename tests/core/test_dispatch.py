"""Which backend an array gets, which path a call takes, and how others join in."""

import gc
import importlib
import importlib.metadata
import logging
import os
import re
import signal
import sys
import threading
import unittest
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_backend
from support.programs import run
from support.ways import decline_all

import rope_xp
from rope_xp import MissingBackendError, RopeError
from rope_xp._core import versions
from rope_xp._core.call import Call
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library
from rope_xp._rotation import portable

X = np.arange(24, dtype=np.float32).reshape(3, 2, 4)


class Derived(np.ndarray):
    pass


@pytest.fixture
def fresh(monkeypatch):
    """Forget what was recognised, and let no test leave traces."""
    monkeypatch.setattr(find, "by_type", {})
    monkeypatch.setattr(find, "_third_party", None)
    monkeypatch.setattr(find, "_broken", [])


def test_arrays_of_every_backend_are_recognised_and_nothing_else(backend):
    found = find.find_backend(backend.make(X))
    assert found is not None
    assert found.name == backend.module
    for thing in (None, 1, "x", [backend.make(X)], object(), np, SimpleNamespace(shape=(1, 2))):
        assert find.find_backend(thing) is None


@pytest.mark.usefixtures("fresh", "small_heap")
def test_subclasses_are_recognised_and_may_be_collected():
    torch = pytest.importorskip("torch")
    assert find.find_backend(torch.nn.Parameter(torch.ones(2, 2))).name == "torch"
    assert find.find_backend(np.float64(1.0)).name == "numpy"

    class Temporary(np.ndarray):
        pass

    known, reference = set(find.by_type), weakref.ref(Temporary)
    rope_xp.RoPE().rotate(X)
    rope_xp.RoPE().rotate(X.view(Temporary))
    assert set(find.by_type) - known <= {np.ndarray}
    del Temporary
    gc.collect()
    assert reference() is None


VERSIONS = {"2.5.1+cu124": True, "1.13": True, "2.6.0": False, "2.13.0a0+git1": False, "3": False}


@pytest.mark.parametrize(("version", "is_old"), [*VERSIONS.items(), ("unknown", False)])
def test_an_old_version_is_named_beside_the_lowest(version, is_old, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    message = rf"torch {version[:3]}.* needs 2\.6 or later"
    with pytest.raises(MissingBackendError, match=message) if is_old else nullcontext():
        versions.check_version("torch")


# --- choosing a path -----------------------------------------------------------------------------


class Stub(Path):
    """A path that declines for the reasons that it is given, and counts its calls."""

    def __init__(self, name: str, reason: str | None) -> None:
        self.name, self.reason, self.count = name, reason, 0
        self.reason_unless_forced: str | None = None
        self.unavailable: str | None = None

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return self.reason or (None if forced else self.reason_unless_forced)

    def run(self, call: Call) -> Any:
        if self.unavailable:
            raise PathUnavailable(self.unavailable)
        self.count += 1
        return portable.run(call)


@pytest.fixture
def paths(monkeypatch):
    stubs = Stub("swift", "it is Tuesday"), Stub("brisk", None)
    monkeypatch.setattr(find.find_backend(X), "paths", stubs)
    decline_all(monkeypatch)
    row = Library("numpy", (("ndarray", find.libraries[0].load),), "", ("swift", "brisk"))
    monkeypatch.setattr(find, "libraries", (row, *find.libraries[1:]))
    return stubs


def test_the_first_path_that_does_not_decline_runs(paths):
    rope_xp.apply(X, X)
    assert [p.count for p in paths] == [0, 1]
    explanation = rope_xp.explain(X, X)
    expected = rope_xp.Explanation("numpy", "brisk", (("swift", "it is Tuesday"),), False)
    assert explanation == expected
    assert str(explanation) == "numpy: brisk\n  not swift: it is Tuesday"
    paths[1].reason_unless_forced = "it is small"
    declined = (("swift", "it is Tuesday"), ("brisk", "it is small"))
    assert rope_xp.explain(X, X) == rope_xp.Explanation("numpy", "portable", declined, False)
    np.testing.assert_array_equal(rope_xp.apply(X, X)[0], rope_xp.RoPE().rotate(X))
    assert [p.count for p in paths] == [0, 1]
    with rope_xp.use_path("brisk"):
        rope_xp.apply(X, X)
    assert [p.count for p in paths] == [0, 2]


def test_a_forced_path_runs_or_raises_in_its_thread(paths):
    forced = []
    with rope_xp.use_path("portable"):
        rope_xp.apply(X, X)
        assert str(rope_xp.explain(X, X)) == "numpy: portable (forced)"
        thread = threading.Thread(target=lambda: forced.append(rope_xp.explain(X, X).forced))
        thread.start()
        thread.join()
        with rope_xp.use_path(None):
            forced.append(rope_xp.explain(X, X).forced)
        forced.append(rope_xp.explain(X, X).forced)
    assert forced == [False, False, True]
    assert [p.count for p in paths] == [0, 0]
    message = "'swift' was forced, but cannot .* it is Tuesday"
    with rope_xp.use_path("swift"), pytest.raises(RopeError, match=message):
        rope_xp.apply(X, X)
    assert rope_xp.explain(X, X).path == "brisk"


def test_a_path_that_fails_to_start_leaves_the_call_to_the_next(paths):
    paths[0].reason, paths[0].unavailable = None, "its compiler is broken"
    rope_xp.apply(X, X)
    assert [p.count for p in paths] == [0, 1]
    message = "'swift' was forced, but cannot .* compiler is broken"
    with rope_xp.use_path("swift"), pytest.raises(RopeError, match=message):
        rope_xp.apply(X, X)


def test_unknown_and_missing_paths_are_refused_by_name(monkeypatch):
    message = "numpy arrays have only: native, chunked, portable"
    with rope_xp.use_path("jit"), pytest.raises(RopeError, match=message):
        rope_xp.apply(X, X)
    message = "there is no path 'warp'; known are portable, native, .*, triton, jit"
    with pytest.raises(RopeError, match=message), rope_xp.use_path("warp"):
        pass
    row = Library("no_such_library", (("A", find.libraries[0].load),), "torch", ("swift",))
    monkeypatch.setattr(find, "libraries", (row,))
    message = r"not installed; pip install 'rope-xp\[torch\]'"
    with pytest.raises(MissingBackendError, match=message), rope_xp.use_path("swift"):
        pass


WARP = "there is no path 'warp', set by the environment variable ROPE_XP_PATH"


def test_the_environment_forces_a_path_by_name():
    code = "import numpy as np, rope_xp; x = np.ones((2, 2, 4)); print(rope_xp.explain(x, x))"
    assert run("-c", code, ROPE_XP_PATH="portable") == "numpy: portable (forced)\n"
    with pytest.raises(AssertionError, match=f"RopeError: {WARP}; known are portable, native"):
        run("-c", code, ROPE_XP_PATH="warp")


def test_the_environment_skips_libraries_without_its_path(monkeypatch):
    jnp = pytest.importorskip("jax.numpy")
    reason = ", but cannot take this call: Derived is a class"
    x = X.view(Derived)
    with rope_xp.use_path(None):
        monkeypatch.setattr(choose.choice, "name", "chunked")
        monkeypatch.setattr(choose.choice, "by", choose._Choice.by)
        assert [rope_xp.explain(x, x).path for x in (X, jnp.asarray(X))] == ["chunked", "jit"]
        rope_xp.apply(jnp.asarray(X), jnp.asarray(X))
        by_environment = f"'chunked' was forced by the environment variable ROPE_XP_PATH{reason}"
        with pytest.raises(RopeError, match=by_environment):
            rope_xp.apply(x, x)
        with rope_xp.use_path("chunked"), pytest.raises(RopeError, match=f"was forced{reason}"):
            rope_xp.apply(x, x)


# --- forks ---------------------------------------------------------------------------------------

FORK = """
import importlib.metadata, os, signal, sys, threading, time
import numpy as np
import rope_xp

reached, x = threading.Event(), np.ones((3, 2, 4), np.float32)

class Wrapped:
    pass

class Slow:
    "A finder that is slow to find what one backend imports, and a plugin that is slow to load."
    value = "slow"
    def find_spec(self, name, *_):
        if name == "rope_xp_backends.numpy.paths":
            self.load()
    def load(self):
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            time.sleep(0.5)

def first():
    if sys.argv[1] == "imports":
        rope_xp.RoPE().rotate(x)
    else:
        try:
            rope_xp.RoPE().rotate(Wrapped())
        except TypeError:
            pass

sys.meta_path.insert(0, Slow())
importlib.metadata.entry_points = lambda group: [Slow()]
thread = threading.Thread(target=first)
thread.start()
assert reached.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)  # which ends a child that waits
    first()
    rope_xp.RoPE(base=9.0).rotate(x)
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("step", ["imports", "entry points"])
def test_a_child_forked_during_the_first_call_waits_for_nobody(step):
    # Python 3.12 warns of any fork beside a thread, which is what is tested here.
    quiet = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    run(*quiet, "-c", FORK, step)


# --- third parties -------------------------------------------------------------------------------


def announce(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[int]:
    reads: list[int] = []
    group = find.ENTRY_POINTS
    entries = [importlib.metadata.EntryPoint(name, f"{name}:BACKEND", group) for name in names]

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        reads.append(1)
        return entries

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return reads


@pytest.mark.usefixtures("fresh")
def test_a_registered_backend_takes_its_arrays(monkeypatch):
    reads, x = announce(monkeypatch, "toy_backend"), toy_backend.Array(X)
    rope_xp.apply(X, X)
    assert reads == []  # never for a type that is known
    q, _ = rope_xp.apply(x, x, layout="half")
    np.testing.assert_array_equal(q.data, rope_xp.RoPE(layout="half").rotate(X))
    rope_xp.RoPE().rotate(x)
    assert reads == [1]
    with rope_xp.use_path("unwrap"):
        assert rope_xp.explain(x, x).forced


@pytest.mark.usefixtures("fresh")
def test_a_registered_backend_may_have_devices_that_its_xp_does_not_know(monkeypatch):
    announce(monkeypatch, "toy_backend")
    monkeypatch.setattr(toy_backend.Toylib, "device", lambda *_: "box:0")
    x = toy_backend.Array(X)
    np.testing.assert_array_equal(rope_xp.RoPE().rotate(x).data, rope_xp.RoPE().rotate(X))
    rope_xp.clear_caches()
    monkeypatch.setattr(toy_backend.Toylib, "asarray", lambda _, host, __: toy_backend.Array(host))
    with pytest.raises(RopeError, match="asarray of the backend toylib returns its own arrays"):
        rope_xp.RoPE().rotate(x, [1] * X.shape[-3])
    rope_xp.clear_caches()


@pytest.mark.usefixtures("fresh")
def test_norm_of_a_registered_backend_is_computed_or_its_path_named(monkeypatch):
    announce(monkeypatch, "toy_backend")
    host, weight = np.ones((3, 2, 8), np.float32), np.full(8, 2.0, np.float32)
    norm = toy_backend.Array(weight), 1e-6
    rotated = rope_xp.RoPE().rotate(toy_backend.Array(host), norm=norm)
    np.testing.assert_array_equal(rotated.data, rope_xp.RoPE().rotate(host, norm=(weight, 1e-6)))
    monkeypatch.setattr(toy_backend.Unwrap, "normalizes", False)
    with pytest.raises(RopeError, match=r"no path of toylib .*unwrap: it does not normalize"):
        rope_xp.RoPE().rotate(toy_backend.Array(host), norm=norm)


@pytest.mark.usefixtures("fresh")
def test_slots_of_a_backend_without_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, "toy_backend")
    x, cache = (toy_backend.Array(np.ones((n, 2, 8), np.float32)) for n in (3, 9))
    with pytest.raises(RopeError, match=r"slots= needs the operations .* toylib arrays do not"):
        rope_xp.apply(x, x, out=(None, cache), slots=[3, 4, 5])
    with pytest.raises(RopeError, match="slots= needs the operations"):
        rope_xp.RoPE().rerotate(cache, [1], [2], slots=[3])


@pytest.mark.usefixtures("fresh")
def test_a_broken_registration_disturbs_nobody(monkeypatch):
    announce(monkeypatch, "no_such_module_anywhere", "no_backend", "toy_backend")
    monkeypatch.setitem(sys.modules, "no_backend", SimpleNamespace(BACKEND="a string"))
    with unittest.TestCase().assertLogs("rope_xp", logging.WARNING) as logs:
        rope_xp.RoPE().rotate(toy_backend.Array(X))
        rope_xp.RoPE().rotate(toy_backend.Array(X))
    broken, no_backend = (record.getMessage() for record in logs.records)
    assert broken.startswith("backend 'no_such_module_anywhere:BACKEND' cannot be imported: No mod")
    assert no_backend == "backend 'no_backend:BACKEND' is no Backend: 'a string'"
    with pytest.raises(TypeError, match=re.escape(f"numpy.asarray; {broken}; {no_backend}")):
        rope_xp.RoPE().rotate(None)


@pytest.mark.usefixtures("fresh")
def test_a_plugin_whose_import_a_handler_interrupts_is_not_broken(monkeypatch):
    load, signals = importlib.metadata.EntryPoint.load, [signal.SIGINT]

    def raise_timeout(*_: object) -> None:
        raise TimeoutError("by a handler")

    def load_interrupted(entry: importlib.metadata.EntryPoint) -> object:
        signal.raise_signal(signals.pop())
        return load(entry)

    announce(monkeypatch, "toy_backend")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", load_interrupted)
    before = signal.signal(signal.SIGINT, raise_timeout)
    try:
        with pytest.raises(TimeoutError):
            rope_xp.RoPE().rotate(toy_backend.Array(X))
    finally:
        signal.signal(signal.SIGINT, before)
    rope_xp.RoPE().rotate(toy_backend.Array(X))


def test_a_backend_that_overrides_nothing_serves_any_standard_library(monkeypatch):
    strict = pytest.importorskip("array_api_strict")
    x = strict.asarray(X)
    monkeypatch.setitem(find.by_type, type(x), type("Bare", (Backend,), {})("bare", strict))
    assert rope_xp.explain(x, x).library == "bare"
    q, k = rope_xp.apply(x, x, positions=strict.arange(len(X)) + 70_000, layout="half")
    expected, _ = rope_xp.apply(X, X, np.arange(len(X)) + 70_000, layout="half")
    assert type(q) is type(k) is type(x)
    np.testing.assert_array_equal(np.asarray(q), expected)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_namespace_of_array_api_compat_is_that_of_its_library(name):
    library = pytest.importorskip(name)
    wrapped = importlib.import_module(f"array_api_compat.{name}")
    assert find.require_backend_of_namespace(wrapped) is find.require_backend_of_namespace(library)
    cos, _ = rope_xp.RoPE().cos_sin([0, 1], 8, xp=wrapped)
    assert rope_xp.explain(cos[:, None, :], cos[:, None, :]).library == name
