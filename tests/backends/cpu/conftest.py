"""The paths of numpy, one after another, and any number of threads."""

import pytest
from rope_xp_backends.cpu import launch, plan
from rope_xp_backends.cpu import threads as _threads
from rope_xp_backends.numpy import paths
from support.targets import TARGETS, lent, missing

import rope_xp


@pytest.fixture(params=["llvm", "chunked"])
def path(request):
    if request.param == "llvm":
        pytest.importorskip("llvmlite")
    with rope_xp.use_path(request.param):
        yield request.param


@pytest.fixture(params=["llvm", "llvm, streaming", "chunked", "cuda"])
def any_path(request, monkeypatch):
    """The kernel for GPUs is run on the CPU by tests/support/cuda_on_cpu.py."""
    name, _, streaming = request.param.partition(", ")
    (target,) = [t for t in TARGETS if t.name == f"numpy-{name}"]
    if reason := missing(target):
        pytest.skip(reason)
    if streaming:
        monkeypatch.setattr(launch, "BYTES_TO_STREAM", 1)
        monkeypatch.setattr(plan, "BYTES_TO_RELEASE", -1)
    with lent(target.lent), rope_xp.use_path(name):
        yield name


@pytest.fixture
def threads(monkeypatch):
    """Set the number of threads, and have small arrays keep them all busy."""
    monkeypatch.setattr(launch, "ELEMENTS_A_THREAD", 1)
    monkeypatch.setattr(paths, "CHUNK_BYTES", 1 << 10)

    def use(number):
        monkeypatch.setenv("ROPE_XP_NUM_THREADS", number)
        _threads.limit.cache_clear()
        _threads._drop_pool_after_fork()

    yield use
    _threads.limit.cache_clear()
    _threads._drop_pool_after_fork()
