"""Kernels that cannot be had: each is given up alone, and said to be, once."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch.kernels import MAX_KERNELS, Kernels

PHASES = pytest.mark.parametrize("phase", ["import", "compile"])


def build_kernels(**steps: Callable[[str], None]) -> tuple[Kernels[str, str], list[str]]:
    """Return kernels that are keys in upper case, and the keys that are compiled.

    ``steps`` are called to "import" the compiler, with an empty key, or to "compile" a key.
    """
    compiled: list[str] = []

    def build(key: str) -> str:
        compiled.append(key)
        steps.get("compile", str)(key)
        return key.upper()

    return Kernels("numpy", lambda: (steps.get("import", str)(""), build)[1]), compiled


@contextmanager
def unavailable(warning: str, error: str) -> Iterator[None]:
    """Require one warning, and a path that is unavailable for a reason."""
    with (
        pytest.warns(RuntimeWarning, match=warning) as caught,
        pytest.raises(PathUnavailable, match=error),
    ):
        yield
    assert len(caught) == 1


def test_kernels_get_compiles_once_for_all_threads():
    imported = Mock(side_effect=lambda _: time.sleep(0.1))
    kernels, compiled = build_kernels(**{"import": imported})
    assert not kernels.ready("a")
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda _: (together.wait(), kernels.get("a"))[1], range(8))
    assert [*results, kernels.get("b")] == ["A"] * 8 + ["B"]
    assert compiled == ["a", "b"]
    imported.assert_called_once()
    assert kernels.ready("a")
    assert kernels.decline_reason("a", "b") is None


def test_kernels_get_gives_up_one_that_fails_and_leaves_the_others():
    def fail_on_bad(key: str) -> None:
        if key == "bad":
            raise ArithmeticError("no\n  such instruction")

    kernels, compiled = build_kernels(compile=fail_on_bad)
    with pytest.raises(ArithmeticError):
        kernels.get("bad", give_up=False)
    assert kernels.decline_reason("bad") is None  # another try may go better
    with unavailable("without a kernel of numpy. numpy cannot compile", "no such instruction"):
        kernels.get("bad")
    with pytest.raises(PathUnavailable, match="no such instruction"):  # a warning would be an error
        kernels.get("bad")
    assert compiled == ["bad", "bad"]
    assert kernels.get("good") == "GOOD"
    assert kernels.decline_reason("good") is kernels.decline_reason() is None
    assert "no such instruction" in str(kernels.decline_reason("good", "bad"))


ERRORS = [(error, True) for error in (SystemError("no"), AssertionError(), KeyError("no"))]
ERRORS += [(MemoryError(), False), (RuntimeError("Triton Error [CUDA]: out of memory"), False)]


@pytest.mark.parametrize(("error", "is_final"), ERRORS, ids=repr)
@PHASES
def test_kernels_get_tries_again_where_memory_was_short_alone(phase, error, is_final):
    kernels, _ = build_kernels(**{phase: Mock(side_effect=[error, error, None])})
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


HANDLERS = [("SIGINT", signal.default_int_handler, KeyboardInterrupt)]
HANDLERS += [("SIGALRM", raise_timeout, TimeoutError)] * hasattr(signal, "SIGALRM")  # an OSError


# As errors, warnings would end what they warn of.
@pytest.mark.filterwarnings("ignore:rope_xp goes on without")
@PHASES
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(("name", "handler", "error"), HANDLERS)
def test_kernels_get_lets_exceptions_of_signal_handlers_out(name, handler, error, phase, broken):
    """Though C code may turn it into another error, and a subprocess may get the signal too."""
    number, interrupts, done = signal.Signals[name], [phase], []

    def interrupt(key: str) -> None:
        if interrupts:
            interrupts.pop()
            signal.raise_signal(number)
            done.append(phase)
            if broken:
                raise RuntimeError("a compiler was killed by a signal")

    kernels, _ = build_kernels(**{phase: interrupt})
    before = signal.signal(number, handler)  # shells have programs behind them ignore interrupts
    try:
        with pytest.raises(error):
            kernels.get("a")
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert done == [phase]  # and not left half way
    assert kernels.decline_reason("a") is None
    assert kernels.get("a") == "A"


def test_kernels_get_tries_again_at_once_after_an_error_of_files():
    """Another process may be writing the same ones."""
    kernels, compiled = build_kernels(compile=Mock(side_effect=[OSError("busy"), None]))
    assert kernels.get("a") == "A"
    assert compiled == ["a", "a"]


def test_kernels_decline_a_compiler_that_is_missing_or_broken_with_the_reason():
    missing: Kernels[str, str] = Kernels("no_such_package", lambda: str.upper)
    assert "(pip install no_such_package)" in str(missing.decline_reason())
    with pytest.raises(PathUnavailable, match="not installed"):
        missing.get("a")

    kernels, _ = build_kernels(**{"import": Mock(side_effect=OSError("libdevice is gone"))})
    assert kernels.decline_reason() is None
    with unavailable("goes on without numpy. numpy cannot be imported", "libdevice is gone"):
        kernels.get("a")
    with pytest.raises(PathUnavailable, match="libdevice is gone"):
        kernels.get("b")
    assert "libdevice is gone" in str(kernels.decline_reason())


def test_kernels_evict_the_oldest_beyond_their_bound():
    kernels: Kernels[int, int] = Kernels("numpy", lambda: lambda key: key)
    for key in range(MAX_KERNELS + 3):
        kernels.get(key)
    ready = [kernels.ready(key) for key in range(MAX_KERNELS + 3)]
    assert ready == [False] * 3 + [True] * MAX_KERNELS
