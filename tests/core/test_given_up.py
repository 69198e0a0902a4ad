"""Kernels that cannot be had: each is given up alone, and said to be, once."""

import re
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch.kernels import MAX_KERNELS, Kernels


class CompilerError(Exception):
    pass


def compiler(tried: list[str]) -> Callable[[], Callable[[str], str]]:
    def compiled(key: str) -> str:
        tried.append(key)
        if key == "bad":
            raise CompilerError("no\n  such instruction")
        return key.upper()

    return lambda: compiled


def test_each_is_compiled_once() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    assert not kernels.ready("a")
    assert [kernels.get("a"), kernels.get("a"), kernels.get("b")] == ["A", "A", "B"]
    assert tried == ["a", "b"]
    assert kernels.ready("a")
    assert kernels.decline_reason("a", "b") is None


def test_one_that_fails_leaves_the_others() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    with (
        pytest.warns(
            RuntimeWarning, match="without a kernel of numpy. numpy cannot compile"
        ) as said,
        pytest.raises(PathUnavailable, match="no such instruction"),
    ):
        kernels.get("bad")
    assert len(said) == 1
    with pytest.raises(PathUnavailable, match="no such instruction"):  # a warning would be an error
        kernels.get("bad")
    assert tried == ["bad"]
    assert kernels.get("good") == "GOOD"
    assert kernels.decline_reason() is None
    assert kernels.decline_reason("good") is None
    assert "no such instruction" in str(kernels.decline_reason("good", "bad"))


ANYTHING = [
    *(SystemError("initialization of _internal failed"), AssertionError(), KeyError("no")),
    *(RuntimeError("cannot cache function"), ZeroDivisionError()),
]


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["imported", "compiled"])
def test_whatever_a_broken_compiler_raises_is_said_once(when: str, error: Exception) -> None:
    def fail(*_: str) -> str:
        raise error

    load = fail if when == "imported" else lambda: fail
    kernels: Kernels[str, str] = Kernels("numpy", load)  # type: ignore[arg-type]  # to fail
    with (
        pytest.warns(RuntimeWarning, match="rope_xp goes on without") as said,
        pytest.raises(PathUnavailable, match=str(error) or type(error).__name__),
    ):
        kernels.get("a")
    assert len(said) == 1
    with pytest.raises(PathUnavailable):  # a warning would be an error
        kernels.get("a")
    assert (str(error) or type(error).__name__) in str(kernels.decline_reason("a"))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("Triton Error [CUDA]: out of memory")], ids=repr
)
@pytest.mark.parametrize("when", ["imported", "compiled"])
def test_short_memory_is_not_remembered(when: str, error: Exception) -> None:
    """The call goes another way, and says so; the next one tries again."""
    short = [True, True]

    def step(name: str) -> None:
        if name == when and short:
            short.pop()
            raise error

    def load() -> Callable[[str], str]:
        step("imported")

        def compiled(key: str) -> str:
            step("compiled")
            return key.upper()

        return compiled

    kernels: Kernels[str, str] = Kernels("numpy", load)
    for _ in range(2):
        with (
            pytest.warns(RuntimeWarning, match="goes on without"),
            pytest.raises(PathUnavailable, match=re.escape(str(error)) or "MemoryError"),
        ):
            kernels.get("a")
        assert kernels.decline_reason("a") is None
    assert kernels.get("a") == "A"


def test_files_that_another_process_is_writing_are_read_again() -> None:
    tried: list[str] = []

    def compiled(key: str) -> str:
        tried.append(key)
        if len(tried) == 1 or key == "gone":
            raise FileNotFoundError(2, "No such file", "kernel.json")
        return key.upper()

    kernels: Kernels[str, str] = Kernels("numpy", lambda: compiled)
    assert kernels.get("a") == "A"
    assert tried == ["a", "a"]
    with pytest.warns(RuntimeWarning, match="kernel.json"), pytest.raises(PathUnavailable):
        kernels.get("gone")
    assert "kernel.json" in str(kernels.decline_reason("gone"))
    assert kernels.get("b") == "B"


@pytest.mark.parametrize("when", ["imported", "compiled"])
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_gets_out_and_nothing_is_given_up(when: str, swallowed: bool) -> None:
    """C code that is interrupted may make an ImportError of it, as numba's did, or nothing."""
    interrupts, done = [when], []

    def step(name: str) -> None:
        if name in interrupts:
            interrupts.remove(name)
            try:
                signal.raise_signal(signal.SIGINT)
                done.append(name)
            except KeyboardInterrupt as interrupt:
                if swallowed:
                    raise ImportError("numba._devicearray failed to import") from interrupt
                raise

    def load() -> Callable[[str], str]:
        step("imported")

        def compiled(key: str) -> str:
            step("compiled")
            return key.upper()

        return compiled

    kernels: Kernels[str, str] = Kernels("numpy", load)
    # Where tests run in the background of a shell, interrupts are ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            kernels.get("a")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [when]  # and not left half way
    assert kernels.decline_reason("a") is None
    assert kernels.get("a") == "A"


def test_interrupts_of_any_kind_get_out() -> None:
    """Also one that somebody raises, and in a thread, where signals cannot be held."""
    interrupts = [KeyboardInterrupt, SystemExit]
    raised: list[type[BaseException]] = []

    def compiled(key: str) -> str:
        if interrupts:
            raise interrupts.pop(0)
        return key.upper()

    kernels: Kernels[str, str] = Kernels("numpy", lambda: compiled)

    def call() -> None:
        try:
            kernels.get("a")
        except BaseException as error:  # noqa: BLE001  # as is to be seen
            raised.append(type(error))

    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert raised == [KeyboardInterrupt, SystemExit]
    assert kernels.decline_reason("a") is None
    assert kernels.get("a") == "A"


def test_another_try_may_go_better() -> None:
    kernels = Kernels("numpy", compiler([]))
    with pytest.raises(CompilerError):
        kernels.get("bad", give_up=False)
    assert kernels.decline_reason("bad") is None


def test_a_package_that_is_missing_or_broken() -> None:
    missing = Kernels("no_such_package", compiler([]))
    assert "(pip install no_such_package)" in str(missing.decline_reason())
    with pytest.raises(PathUnavailable, match="not installed"):
        missing.get("a")

    def broken() -> Callable[[str], str]:
        raise OSError("libdevice is gone")

    kernels: Kernels[str, str] = Kernels("numpy", broken)
    assert kernels.decline_reason() is None
    with (
        pytest.warns(RuntimeWarning, match="goes on without numpy. numpy cannot be imported"),
        pytest.raises(PathUnavailable, match="libdevice is gone"),
    ):
        kernels.get("a")
    with pytest.raises(PathUnavailable, match="libdevice is gone"):
        kernels.get("b")
    assert "libdevice is gone" in str(kernels.decline_reason())


def test_there_is_a_bound() -> None:
    kernels: Kernels[int, int] = Kernels("numpy", lambda: lambda key: key)
    for key in range(MAX_KERNELS + 3):
        kernels.get(key)
    assert len(kernels._compiled) == MAX_KERNELS
    assert not kernels.ready(0)
    assert kernels.ready(MAX_KERNELS + 2)


def test_threads_compile_a_kernel_once() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    together = threading.Barrier(8)

    def first() -> None:
        together.wait()
        assert kernels.get("a") == "A"

    threads = [threading.Thread(target=first) for _ in range(8)]
    with warnings.catch_warnings():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tried == ["a"]
