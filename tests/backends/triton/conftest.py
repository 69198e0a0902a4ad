"""What makes calls take the kernel for GPUs, and variants of it that they would launch."""

import sys

import pytest
from rope_xp_backends.gpu import triton_plan

import rope_xp
from rope_xp._dispatch.kernels import Kernels


@pytest.fixture(autouse=True)
def _no_plans():
    """Forget plans and cached calls, made before a constant or function was replaced."""
    for is_over in (False, True):
        triton_plan.plan_launch.cache_clear()
        if calls := sys.modules.get("rope_xp_backends.torch.gpu_calls"):
            calls.CALLS.cache_clear()
        if not is_over:
            yield


@pytest.fixture
def _by_the_kernel():
    with rope_xp.use_path("triton"):
        yield


@pytest.fixture
def compile_by(monkeypatch):
    """Set the function from a kernel's key to its launch, for calls with tensors of the CPU."""
    from rope_xp_backends.torch import entry, gpu, library, op  # they need torch

    def replace(compile_kernel):
        monkeypatch.setattr(gpu, "KERNELS", Kernels("triton", lambda: compile_kernel))
        monkeypatch.setitem(op.RUNS, "cpu", gpu.rotate_on_gpu)
        monkeypatch.setattr(library, "DEVICES", {"cpu"})
        for name in ("rotate_by_rope", "rotate_by_tables"):  # which take tensors of the CPU first
            monkeypatch.setattr(entry, f"native_{name}", lambda *_: None)

    return replace


@pytest.fixture
def planned(compile_by, monkeypatch, tmp_path):
    """Variants that calls with tensors of the CPU would launch. All but the launch takes place."""
    variants = []
    compile_by(lambda key: lambda *_: variants.append(key[0]))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with rope_xp.use_path("triton"):
        yield variants
