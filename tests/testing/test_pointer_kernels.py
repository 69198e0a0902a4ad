"""conventions: wrong kernels in C++ are told why, and get no position too large for a table."""

import os
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.pointer_kernels import describe_kernel

SOURCE = Path(__file__).parents[1] / "support" / "pointer_kernels.cpp"


@pytest.fixture(scope="module")
def describe(tmp_path_factory):
    """Return describe_kernel in a process that a kernel ends if it reads behind its table."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("kernels") / "kernels.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", SOURCE, "-o", library], check=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda *case: pool.submit(describe_kernel, library, *case).result()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("layout", "layout is 'interleaved', and not 'half'"),
        ("sign", "turns by the negative angle"),
        ("none", ""),
    ],
)
@pytest.mark.parametrize(
    "convention", ["vllm", "sglang", "flash_attn", "fla", "transformer_engine", "onnx"]
)
def test_assert_rotates_of_a_kernel_by_pointers_names_the_cause(describe, convention, fault, cause):
    usual, short, few = describe(convention, fault)
    if fault == "none":
        assert (usual, short, few) == ("", "", "")
    else:
        assert cause in usual
        assert cause in short
        assert "does not rotate as" in few
    assert "positions from" not in usual + short + few
