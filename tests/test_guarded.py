"""No kernel reads or writes beyond an array, as the pages there are nobody's: see guarded.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import cuda_on_cpu
import pytest

HERE = Path(__file__).parent


# The interpreter takes minutes for all 4320; by elevens it comes to every width, dtype and layout.
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize(
    ("path", "every", "count"), [("numba", 5, 864), ("cuda", 1, 4320), ("triton", 11, 396)]
)
def test_nothing_is_touched_beyond_an_array(path: str, every: int, count: int) -> None:
    if path == "cuda" and (reason := cuda_on_cpu.objection()):
        pytest.skip(reason)
    for module in {"numba": ["numba"], "triton": ["torch", "triton"]}.get(path, []):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if path == "triton" and version("triton").startswith("3.6."):
        pytest.skip("the interpreter of triton 3.6 fails with numpy 2.4")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / "guarded.py"), path, str(every)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(str(p) for p in (HERE.parent, HERE.parent / "backends")),
        },
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-4000:])
    assert done.stdout == f"{count}\n"
