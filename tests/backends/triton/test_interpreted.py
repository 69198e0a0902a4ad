"""The kernel for GPUs where there is none, in Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

HERE = Path(__file__).parent
# Triton 3.6 has an assembler, of CUDA 12.9, that fuses pairs of floats on Blackwell though told not
# to, which is within the promised 2 ulp; and an interpreter that numpy 2.4 breaks.
OLD = triton.__version__.startswith("3.6.")


# test_op*.py without gradcheck, whose thousands of calls would be interpreted for minutes, and
# without what is about memory of CPUs.
@pytest.mark.skipif(OLD, reason="the interpreter of triton 3.6 fails with numpy 2.4")
@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (["test_triton_kernel.py"], 145),
        (["test_equivalence.py"], 75),
        (["test_rotation.py", "-k", "torch-triton and not bfloat16"], 15),
        (["test_oracles.py", "-k", "torch-triton"], 10),
        (["test_angles.py", "-k", "torch-triton"], 35),
        (["test_torch_op.py", "-k", "not gradients_and_theirs and not resized"], 35),
    ],
    ids=lambda a: a[0] if isinstance(a, list) else "",
)
def test_in_the_interpreter(arguments: list[str], least: int) -> None:
    file, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file), *rest],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        # Not the options of the outer run, which may ask for processes of its own.
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "skipped" not in done.stdout
    found = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert found, done.stdout[-4000:]
    assert int(found[1]) >= least
