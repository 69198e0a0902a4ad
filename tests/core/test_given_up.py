"""Kernels that cannot be had: each is given up alone, and said to be, once."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch.kernels import MAX_KERNELS, Kernels

Step = Callable[[str, str], None]
PHASES = pytest.mark.parametrize("phase", ["imported", "compiled"])


def build_kernels(step: Step = lambda phase, key: None) -> tuple[Kernels[str, str], list[str]]:
    """Return kernels that are keys in upper case, and the keys that are compiled."""
    compiled: list[str] = []

    def load() -> Callable[[str], str]:
        step("imported", "")

        def build(key: str) -> str:
            compiled.append(key)
            step("compiled", key)
            return key.upper()

        return build

    return Kernels("numpy", load), compiled


@contextmanager
def unavailable(warning: str, error: str | None = None) -> Iterator[None]:
    """Require one warning, and a path that is unavailable for a reason."""
    with (
        pytest.warns(RuntimeWarning, match=warning) as caught,
        pytest.raises(PathUnavailable, match=error),
    ):
        yield
    assert len(caught) == 1


def test_a_kernel_is_compiled_once_for_all_threads():
    kernels, compiled = build_kernels()
    assert not kernels.ready("a")
    together, results = threading.Barrier(8), []

    def call() -> None:
        together.wait()
        results.append(kernels.get("a"))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(call) for _ in range(8)]:
            future.result()
    assert [*results, kernels.get("b")] == ["A"] * 8 + ["B"]
    assert compiled == ["a", "b"]
    assert kernels.ready("a")
    assert kernels.decline_reason("a", "b") is None


def fail_on_bad(phase: str, key: str) -> None:
    if key == "bad":
        raise ArithmeticError("no\n  such instruction")


def test_a_kernel_that_fails_is_given_up_and_leaves_the_others():
    kernels, compiled = build_kernels(fail_on_bad)
    with pytest.raises(ArithmeticError):
        kernels.get("bad", give_up=False)
    assert kernels.decline_reason("bad") is None  # another try may go better
    with unavailable("without a kernel of numpy. numpy cannot compile", "no such instruction"):
        kernels.get("bad")
    with pytest.raises(PathUnavailable, match="no such instruction"):  # a warning would be an error
        kernels.get("bad")
    assert compiled == ["bad", "bad"]
    assert kernels.get("good") == "GOOD"
    assert kernels.decline_reason() is None
    assert kernels.decline_reason("good") is None
    assert "no such instruction" in str(kernels.decline_reason("good", "bad"))


ERRORS = [(error, True) for error in (SystemError("no"), AssertionError(), KeyError("no"))]
ERRORS += [(RuntimeError("no"), True), (MemoryError(), False)]
ERRORS += [(RuntimeError("Triton Error [CUDA]: out of memory"), False)]


@pytest.mark.parametrize(("error", "is_final"), ERRORS, ids=repr)
@PHASES
def test_errors_of_a_compiler_are_final_but_for_short_memory(phase, error, is_final):
    """The call goes another way and says so; where memory was short, the next one tries again."""
    failures = [error, error]

    def step(current: str, key: str) -> None:
        if current == phase and failures:
            raise failures.pop()

    kernels, _ = build_kernels(step)
    message = re.escape(str(error)) or type(error).__name__
    for _ in range(1 if is_final else 2):
        with unavailable("goes on without", message):
            kernels.get("a")
        assert re.search(message if is_final else "None", str(kernels.decline_reason("a")))
    if is_final:
        with pytest.raises(PathUnavailable):  # a warning would be an error
            kernels.get("a")
    else:
        assert kernels.get("a") == "A"


def raise_timeout(*_: object) -> None:
    raise TimeoutError("by a handler")


HANDLERS = {"SIGINT": (signal.default_int_handler, KeyboardInterrupt)}
if hasattr(signal, "SIGALRM"):
    HANDLERS["SIGALRM"] = (raise_timeout, TimeoutError)  # an OSError


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    # Where tests run in the background of a shell, interrupts are ignored.
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@PHASES
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", HANDLERS)
def test_exceptions_of_signal_handlers_get_out_and_nothing_is_given_up(name, phase, broken):
    """Though C code may turn it into another error, and a subprocess may get the signal too."""
    number, (handler, error) = signal.Signals[name], HANDLERS[name]
    interrupts, done = [phase], []

    def step(current: str, key: str) -> None:
        if current in interrupts:
            interrupts.remove(current)
            signal.raise_signal(number)
            done.append(current)
            if broken:
                raise ChildProcessError("a compiler was killed by a signal")

    kernels, _ = build_kernels(step)
    with handled(number, handler):
        with pytest.raises(error):
            kernels.get("a")
        assert signal.getsignal(number) is handler
    assert done[0] == phase  # and not left half way
    assert kernels.decline_reason("a") is None
    assert kernels.get("a") == "A"


def test_a_compiler_that_is_missing_or_broken_declines_with_its_reason():
    missing: Kernels[str, str] = Kernels("no_such_package", lambda: str.upper)
    assert "(pip install no_such_package)" in str(missing.decline_reason())
    with pytest.raises(PathUnavailable, match="not installed"):
        missing.get("a")

    def break_import(phase: str, key: str) -> None:
        raise OSError("libdevice is gone")

    kernels, _ = build_kernels(break_import)
    assert kernels.decline_reason() is None
    with unavailable("goes on without numpy. numpy cannot be imported", "libdevice is gone"):
        kernels.get("a")
    with pytest.raises(PathUnavailable, match="libdevice is gone"):
        kernels.get("b")
    assert "libdevice is gone" in str(kernels.decline_reason())


def test_compiled_kernels_are_bounded_and_the_oldest_is_evicted():
    kernels: Kernels[int, int] = Kernels("numpy", lambda: lambda key: key)
    for key in range(MAX_KERNELS + 3):
        kernels.get(key)
    ready = [kernels.ready(key) for key in range(MAX_KERNELS + 3)]
    assert ready == [False] * 3 + [True] * MAX_KERNELS
