"""What makes calls take the kernel for GPUs, and variants of it that they would launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rope_xp_backends.gpu import triton_plan
from rope_xp_backends.gpu.triton_plan import Variant

import rope_xp
from rope_xp._dispatch import call_cache


@pytest.fixture(autouse=True)
def nothing_bound() -> None:
    """Let no call do what it was bound to before something was replaced."""
    call_cache.CALLS.cache_clear()


@pytest.fixture
def _by_the_kernel() -> Iterator[None]:
    with rope_xp.use_path("triton"):
        yield


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def _offsets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Once more as if every tensor had more than 2**31 elements."""
    if request.param:
        monkeypatch.setattr(triton_plan, "_INT32", 0)
    triton_plan.plan.cache_clear()
    yield
    triton_plan.plan.cache_clear()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Variant]]:
    """Variants that calls with tensors of the CPU would launch. All but the launch takes place."""
    from rope_xp_backends.torch import gpu, op, results  # they need torch

    found: list[Variant] = []

    def plan(out: Any, arrays: Any, how: Any) -> Any:
        out = out or tuple(map(results.new, arrays))
        found.extend(launch.variant for launch, _ in gpu._launches(out, arrays, how))
        return out

    monkeypatch.setitem(op.RUNS, "cpu", plan)
    monkeypatch.setattr(gpu, "prepare", lambda *_: None)  # there is nothing to be bound to
    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with rope_xp.use_path("triton"):
        yield found
