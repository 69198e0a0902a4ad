"""conventions: wrong kernels in C++ are told why, and get no position too large for a table."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.pointer_kernels import CAUSES

import rope_xp

CONVENTIONS = ("vllm", "sglang", "flash_attn", "fla", "transformer_engine", "onnx")
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    source = SUPPORT / "pointer_kernels.cpp"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", path], check=True)
    return path


@pytest.mark.parametrize("fault", CAUSES)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_assert_rotates_of_a_kernel_by_pointers_names_the_cause(library, convention, fault):
    """In a process of its own: a kernel that reads behind its table ends it."""
    roots = [str(Path(rope_xp.__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, SUPPORT / "pointer_kernels.py", library, convention, fault],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the kernel ended its process: {done.returncode} {done.stderr}"
    usual, short, few, _ = done.stdout.split("---\n")
    if fault == "none":
        assert {usual, short, few} == {"rotates\n"}
    else:
        assert CAUSES[fault] in usual
        assert CAUSES[fault] in short
        assert "does not rotate as" in few
    assert "positions from" not in done.stdout
