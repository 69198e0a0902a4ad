"""Kernels that cannot be had: each is given up alone, and said to be, once."""

import threading
import warnings
from collections.abc import Callable

import pytest

from rope_xp._contract.path import Unavailable
from rope_xp._dispatch.kernels import MOST, Errors, Kernels


class CompilerError(Exception):
    pass


def compiler(tried: list[str]) -> Callable[[], tuple[Callable[[str], str], Errors]]:
    def compiled(key: str) -> str:
        tried.append(key)
        if key == "bad":
            raise CompilerError("no\n  such instruction")
        if key == "bug":
            raise ZeroDivisionError
        return key.upper()

    return lambda: (compiled, (CompilerError,))


def test_each_is_compiled_once() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    assert not kernels.ready("a")
    assert [kernels.get("a"), kernels.get("a"), kernels.get("b")] == ["A", "A", "B"]
    assert tried == ["a", "b"]
    assert kernels.ready("a")
    assert kernels.objection("a", "b") is None


def test_one_that_fails_leaves_the_others() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    with (
        pytest.warns(
            RuntimeWarning, match="without a kernel of numpy. numpy cannot compile"
        ) as said,
        pytest.raises(Unavailable, match="no such instruction"),
    ):
        kernels.get("bad")
    assert len(said) == 1
    with pytest.raises(Unavailable, match="no such instruction"):  # a warning would be an error
        kernels.get("bad")
    assert tried == ["bad"]
    assert kernels.get("good") == "GOOD"
    assert kernels.objection() is None
    assert kernels.objection("good") is None
    assert "no such instruction" in str(kernels.objection("good", "bad"))


def test_what_is_no_failure_of_the_compiler_gets_out() -> None:
    tried: list[str] = []
    kernels = Kernels("numpy", compiler(tried))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kernels.get("bug")
    assert tried == ["bug", "bug"]
    assert kernels.objection("bug") is None


def test_another_try_may_go_better() -> None:
    kernels = Kernels("numpy", compiler([]))
    with pytest.raises(CompilerError):
        kernels.get("bad", give_up=False)
    assert kernels.objection("bad") is None


def test_a_package_that_is_missing_or_broken() -> None:
    missing = Kernels("no_such_package", compiler([]))
    assert "pip install 'rope-xp[no_such_package]'" in str(missing.objection())
    with pytest.raises(Unavailable, match="not installed"):
        missing.get("a")

    def broken() -> tuple[Callable[[str], str], Errors]:
        raise OSError("libdevice is gone")

    kernels: Kernels[str, str] = Kernels("numpy", broken)
    assert kernels.objection() is None
    with (
        pytest.warns(RuntimeWarning, match="goes on without numpy. numpy cannot be imported"),
        pytest.raises(Unavailable, match="libdevice is gone"),
    ):
        kernels.get("a")
    with pytest.raises(Unavailable, match="libdevice is gone"):
        kernels.get("b")
    assert "libdevice is gone" in str(kernels.objection())


def test_there_is_a_bound() -> None:
    kernels: Kernels[int, int] = Kernels("numpy", lambda: (lambda key: key, ()))
    for key in range(MOST + 3):
        kernels.get(key)
    assert len(kernels._made) == MOST
    assert not kernels.ready(0)
    assert kernels.ready(MOST + 2)


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
