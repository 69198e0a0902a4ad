"""Memory of results: in huge pages, unless the user wants none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ADVISED = """
import torch
from rope_xp_backends.torch import results

result = results.allocate_result(torch.empty(1 << 23))
result.zero_()
middle, inside = result.data_ptr() + result.nbytes // 2, False
for line in open("/proc/self/smaps"):
    name, _, rest = line.partition(" ")
    if "-" in name:
        start, end = (int(part, 16) for part in name.split("-"))
        inside = start <= middle < end
    elif inside and name == "VmFlags:":
        print("hg" in rest.split())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such advice")
def test_huge_pages_can_be_turned_off(tmp_path: Path) -> None:
    (tmp_path / "advised.py").write_text(ADVISED)

    def advised(**variables: str) -> str:
        others = {name: v for name, v in os.environ.items() if name != "ROPE_XP_HUGE_PAGES"}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "advised.py")],
            check=True,
            capture_output=True,
            text=True,
            env=others | variables,
            timeout=100,
        )
        return done.stdout.strip()

    if advised() != "True":
        pytest.skip("this kernel of Linux has no huge pages")
    assert advised(ROPE_XP_HUGE_PAGES="0") == "False"
