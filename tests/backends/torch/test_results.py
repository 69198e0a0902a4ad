"""Memory of results: in huge pages, unless the user wants none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rope_xp_backends.torch import op_args  # noqa: E402  # it needs torch


def is_advised(result: Any) -> bool:
    """Return whether the system was asked for huge pages in the middle of a tensor."""
    middle, inside = result.data_ptr() + result.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= middle < end
        elif inside and name == "VmFlags:":
            return "hg" in rest.split()
    raise AssertionError("no mapping has the tensor")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such advice")
def test_huge_pages_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.empty(1 << 23)
    result = op_args.allocate_result(large).zero_()
    if not is_advised(result):
        pytest.skip("this kernel of Linux has no huge pages")
    monkeypatch.setenv("ROPE_XP_HUGE_PAGES", "0")
    spec = importlib.util.spec_from_file_location(f"{op_args.__name__}_off", op_args.__file__)
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert not is_advised(without.allocate_result(torch.empty(1 << 24)).zero_())
