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
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import toy_backend
from support.kinds import Derived
from support.programs import run
from support.targets import truth
from support.ways import decline_all

import rope_xp
from rope_xp import MissingBackendError, RoPE, RopeError
from rope_xp._core import versions
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library
from rope_xp._rotation import portable

X = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
NAMES = ("swift", "brisk")


def test_find_backend_recognises_arrays_and_nothing_else(backend):
    found = find.find_backend(backend.make(X))
    assert found is not None
    assert found.name == backend.module
    for thing in (None, 1, "x", [backend.make(X)], object(), np, SimpleNamespace(shape=(1, 2))):
        assert find.find_backend(thing) is None


@pytest.mark.usefixtures("small_heap")
def test_find_backend_recognises_subclasses_and_lets_them_be_collected(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(find, "by_type", {})
    assert find.find_backend(torch.nn.Parameter(torch.ones(2, 2))).name == "torch"
    assert find.find_backend(np.float64(1.0)).name == "numpy"

    class Temporary(np.ndarray):
        pass

    known, reference = set(find.by_type), weakref.ref(Temporary)
    RoPE().rotate(X)
    RoPE().rotate(X.view(Temporary))
    assert set(find.by_type) - known <= {np.ndarray}
    del Temporary
    gc.collect()
    assert reference() is None


def test_check_version_names_an_old_version_beside_the_lowest(monkeypatch):
    for version in ("2.6", "2.13.0a0+git1", "?", "2.5.1+cu124"):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
        if version != "2.5.1+cu124":
            versions.check_version("torch")
    message = r"torch 2.5.1\+cu124 is installed; rope_xp needs 2.6 or later"
    with pytest.raises(MissingBackendError, match=message):
        versions.check_version("torch")


# --- choosing a path -----------------------------------------------------------------------------


@pytest.fixture
def paths(monkeypatch):
    """Return two paths of numpy, of which the first declines."""
    stubs = [Mock(Path, normalizes=False, takes_slots=False) for _ in range(2)]
    for stub, name, reason in zip(stubs, NAMES, ("it is Tuesday", None), strict=True):
        stub.name, stub.run.side_effect = name, portable.run
        stub.decline_reason.return_value = reason
    monkeypatch.setattr(find.find_backend(X), "paths", stubs)
    decline_all(monkeypatch)
    row = Library("numpy", (("ndarray", find.libraries[0].load),), "", NAMES)
    monkeypatch.setattr(find, "libraries", (row, *find.libraries[1:]))
    return stubs


def count_runs(paths) -> list[int]:
    return [path.run.call_count for path in paths]


def test_apply_and_explain_take_the_first_path_that_does_not_decline(paths):
    rope_xp.apply(X, X)
    assert count_runs(paths) == [0, 1]
    explanation = rope_xp.explain(X, X)
    expected = rope_xp.Explanation("numpy", "brisk", (("swift", "it is Tuesday"),), False)
    assert explanation == expected
    assert str(explanation) == "numpy: brisk\n  not swift: it is Tuesday"
    paths[1].decline_reason.side_effect = lambda _, forced: None if forced else "it is small"
    declined = (("swift", "it is Tuesday"), ("brisk", "it is small"))
    assert rope_xp.explain(X, X) == rope_xp.Explanation("numpy", "portable", declined, False)
    np.testing.assert_array_equal(rope_xp.apply(X, X)[0], RoPE().rotate(X))
    assert count_runs(paths) == [0, 1]
    with rope_xp.use_path("brisk"):
        rope_xp.apply(X, X)
    assert count_runs(paths) == [0, 2]


def test_use_path_holds_in_its_thread_until_it_ends(paths):
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
    assert count_runs(paths) == [0, 0]
    assert rope_xp.explain(X, X).path == "brisk"


def test_use_path_raises_where_its_path_declines_or_cannot_start(paths):
    paths[1].run.side_effect = PathUnavailable("its compiler is broken")
    np.testing.assert_array_equal(rope_xp.apply(X, X)[0], truth(RoPE().rotate, X))
    for name, reason in zip(NAMES, ("it is Tuesday", "its compiler is broken"), strict=True):
        message = f"'{name}' was forced, but cannot take this call: {reason}"
        with rope_xp.use_path(name), pytest.raises(RopeError, match=message):
            rope_xp.apply(X, X)


def test_a_forced_path_that_takes_no_slots_has_keys_written_for_it(paths):
    paths[0].decline_reason.return_value, paths[1].takes_slots = None, True
    cache = np.zeros((9, 2, 4), np.float32)
    with rope_xp.use_path("swift"):
        rope_xp.apply(X, X, out=(None, cache), slots=[4, 0, 7])
    np.testing.assert_array_equal(cache[[4, 0, 7]], truth(RoPE().rotate, X))
    assert count_runs(paths) == [1, 0]


def test_use_path_refuses_unknown_and_missing_paths_by_name(monkeypatch):
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


def test_rope_xp_path_forces_a_path_by_name():
    code = "import numpy as np, rope_xp; x = np.ones((2, 2, 4)); print(rope_xp.explain(x, x))"
    assert run("-c", code, ROPE_XP_PATH="portable") == "numpy: portable (forced)\n"
    message = "RopeError: there is no path 'warp', set by the environment variable ROPE_XP_PATH; k"
    with pytest.raises(AssertionError, match=message):
        run("-c", code, ROPE_XP_PATH="warp")


def test_rope_xp_path_leaves_libraries_without_its_path_alone(monkeypatch):
    jnp = pytest.importorskip("jax.numpy")
    x, reason = X.view(Derived), ", but cannot take this call: Derived is a class"
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


FORK = """
import contextlib, importlib.metadata, os, signal, sys, threading, time
import numpy as np
import rope_xp

reached, x = threading.Event(), np.ones((3, 2, 4), np.float32)

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
    with contextlib.suppress(TypeError):
        rope_xp.RoPE().rotate(x if sys.argv[1] == "imports" else Slow())

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
def test_rotate_in_a_child_forked_during_the_first_call_waits_for_nobody(step):
    # Python 3.12 warns of any fork beside a thread, which is what is tested here.
    quiet = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    run(*quiet, "-c", FORK, step)


# --- third parties -------------------------------------------------------------------------------


@pytest.fixture
def announce(monkeypatch):
    """Forget what was recognised, and return a function that registers backends by module."""
    for name, value in (("by_type", {}), ("_third_party", None), ("_broken", [])):
        monkeypatch.setattr(find, name, value)

    def announce(*names: str) -> Mock:
        group = find.ENTRY_POINTS
        entries = [importlib.metadata.EntryPoint(name, f"{name}:BACKEND", group) for name in names]
        read = Mock(return_value=entries)
        monkeypatch.setattr(importlib.metadata, "entry_points", read)
        return read

    return announce


def test_registered_backend_takes_its_arrays(announce, monkeypatch):
    read, x = announce("toy_backend"), toy_backend.Array(X)
    rope_xp.apply(X, X)
    read.assert_not_called()  # as the type is known
    q, _ = rope_xp.apply(x, x, layout="half")
    np.testing.assert_array_equal(q.data, RoPE(layout="half").rotate(X))
    RoPE().rotate(x)
    read.assert_called_once_with(group=find.ENTRY_POINTS)
    with rope_xp.use_path("unwrap"):
        assert rope_xp.explain(x, x).forced
    monkeypatch.setattr(toy_backend.Toylib, "device", lambda *_: "box:0")  # which xp does not know
    np.testing.assert_array_equal(RoPE().rotate(x).data, RoPE().rotate(X))


def test_registered_backend_normalizes_or_its_path_is_named(announce, monkeypatch):
    announce("toy_backend")
    host, weight = np.ones((3, 2, 8), np.float32), np.full(8, 2.0, np.float32)
    norm = toy_backend.Array(weight), 1e-6
    rotated = RoPE().rotate(toy_backend.Array(host), norm=norm)
    np.testing.assert_array_equal(rotated.data, RoPE().rotate(host, norm=(weight, 1e-6)))
    monkeypatch.setattr(toy_backend.Unwrap, "normalizes", False)
    with pytest.raises(RopeError, match=r"no path of toylib .*unwrap: it does not normalize"):
        RoPE().rotate(toy_backend.Array(host), norm=norm)


def test_registered_backend_without_operations_refuses_slots(announce):
    announce("toy_backend")
    x, cache = (toy_backend.Array(np.ones((n, 2, 8), np.float32)) for n in (3, 9))
    with pytest.raises(RopeError, match=r"slots= needs the operations .* toylib arrays do not"):
        rope_xp.apply(x, x, out=(None, cache), slots=[3, 4, 5])
    with pytest.raises(RopeError, match="slots= needs the operations"):
        RoPE().rerotate(cache, [1], [2], slots=[3])


def test_broken_registration_warns_and_leaves_the_others(announce, monkeypatch):
    announce("no_such_module_anywhere", "no_backend", "toy_backend")
    monkeypatch.setitem(sys.modules, "no_backend", SimpleNamespace(BACKEND="a string"))
    with unittest.TestCase().assertLogs("rope_xp", logging.WARNING) as logs:
        RoPE().rotate(toy_backend.Array(X))
        RoPE().rotate(toy_backend.Array(X))
    broken, no_backend = (record.getMessage() for record in logs.records)
    assert broken.startswith("backend 'no_such_module_anywhere:BACKEND' cannot be imported: No mod")
    assert no_backend == "backend 'no_backend:BACKEND' is no Backend: 'a string'"
    with pytest.raises(TypeError, match=re.escape(f"numpy.asarray; {broken}; {no_backend}")):
        RoPE().rotate(None)


def test_registered_backend_whose_import_a_handler_interrupts_is_not_broken(announce, monkeypatch):
    load, signals = importlib.metadata.EntryPoint.load, [signal.SIGINT]

    def load_interrupted(entry: importlib.metadata.EntryPoint) -> object:
        if signals:
            signal.raise_signal(signals.pop())
        return load(entry)

    announce("toy_backend")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", load_interrupted)
    before = signal.signal(signal.SIGINT, Mock(side_effect=TimeoutError))  # as a broken one raises
    try:
        with pytest.raises(TimeoutError):
            RoPE().rotate(toy_backend.Array(X))
    finally:
        signal.signal(signal.SIGINT, before)
    RoPE().rotate(toy_backend.Array(X))


def test_backend_that_overrides_nothing_serves_any_standard_library(monkeypatch):
    strict = pytest.importorskip("array_api_strict")
    x = strict.asarray(X)
    monkeypatch.setitem(find.by_type, type(x), type("Bare", (Backend,), {})("bare", strict))
    assert rope_xp.explain(x, x).library == "bare"
    q, k = rope_xp.apply(x, x, positions=strict.arange(len(X)) + 70_000, layout="half")
    expected, _ = rope_xp.apply(X, X, np.arange(len(X)) + 70_000, layout="half")
    assert type(q) is type(k) is type(x)
    np.testing.assert_array_equal(np.asarray(q), expected)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_cos_sin_takes_a_namespace_of_array_api_compat_as_its_library(name):
    library = pytest.importorskip(name)
    wrapped = importlib.import_module(f"array_api_compat.{name}")
    assert find.require_backend_of_namespace(wrapped) is find.require_backend_of_namespace(library)
    cos, _ = RoPE().cos_sin([0, 1], 8, xp=wrapped)
    assert rope_xp.explain(cos[:, None, :], cos[:, None, :]).library == name
