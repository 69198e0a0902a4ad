"""The paths of numpy, one after another, and the native module with thresholds of its own."""

import pytest
from rope_xp_backends.cpu.native import module as _module
from support.targets import TARGETS, lent, missing

import rope_xp

LEVELS = _module.levels()[:-1] if _module else ()
"""The instruction sets of this processor besides the best, which other tests use."""


@pytest.fixture(scope="session")
def native():
    return pytest.importorskip("rope_xp_backends.cpu._native")


@pytest.fixture
def tune(native):
    """Return a function that changes thresholds until the test is over."""
    before = {}

    def change(**values):
        for name, value in values.items():
            before.setdefault(name, native.tune(name, value))

    yield change
    for name, value in before.items():
        native.tune(name, value)


@pytest.fixture(params=["native", "native, streaming", *LEVELS, "chunked", "cuda"])
def any_path(request):
    """The kernel for GPUs is run on the CPU by tests/support/cuda_on_cpu.py."""
    name = request.param if request.param in ("chunked", "cuda") else "native"
    (target,) = [t for t in TARGETS if t.name == f"numpy-{name}"]
    if reason := missing(target):
        pytest.skip(reason)
    if request.param == "native, streaming":
        request.getfixturevalue("tune")(large_bytes=1, release_bytes=1)
    if request.param in LEVELS:
        _module.use_level(request.param)
    with lent(target.lent), rope_xp.use_path(name):
        yield name
    if request.param in LEVELS:
        _module.use_level(_module.levels()[-1])


@pytest.fixture
def threads(monkeypatch, tune):
    """Set the number of threads, and have small arrays keep them all busy."""
    tune(thread_elements=1)
    return lambda number: monkeypatch.setenv("ROPE_XP_NUM_THREADS", number)
