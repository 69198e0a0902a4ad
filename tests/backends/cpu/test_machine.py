"""Machine code: what its instructions are, where there is none, and how long it is held."""

import importlib
import re
import sys

import numpy as np
import pytest
from rope_xp_backends.cpu import launch
from rope_xp_backends.cpu.plan import KernelKey
from rope_xp_backends.numpy import paths
from support.programs import run
from support.targets import truth

import rope_xp
from rope_xp import RoPE
from rope_xp._dispatch.kernels import Kernels

llvm = pytest.importorskip("llvmlite.binding")
kernels = importlib.import_module("rope_xp_backends.cpu.machine")

FUSING = {
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ""),
    "Apple": ("arm64-apple-macosx14.0.0", "apple-m1", ""),
    "x86-64": ("x86_64-unknown-linux-gnu", "haswell", "+fma,+f16c,+avx2"),
}
"""Machines with instructions that multiply and add with one rounding."""
FUSED = re.compile(r"\bv?fn?m(add|sub|la|ls)\w*")
POWER = ("powerpc64le-unknown-linux-gnu", "pwr8", "")
MISSING = re.compile(r"__(?:extend|trunc)\w+|__gnu\w+")
"""Functions of a compiler's own library, which a process may lack."""


def assembly(dtype, machine):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    key = KernelKey(dtype, interleaved_in=True, interleaved_out=False, pairs=64)
    return kernels.emit_assembly(key, *machine)


@pytest.mark.covering
@pytest.mark.parametrize("machine", FUSING)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_instructions_fuse_no_product_and_call_no_missing_function(dtype, machine):
    code = assembly(dtype, FUSING[machine])
    assert "fmul" in code or "vmulp" in code
    assert not FUSED.search(code)
    assert not MISSING.search(code)
    names = ("vcvtph2ps", "vcvtps2ph") if machine == "x86-64" else ("fcvtl", "fcvtn")
    assert all(name in code for name in names) or dtype != "float16"


def test_bfloat16_needs_no_instruction_of_its_own():
    assert not MISSING.search(assembly("bfloat16", POWER))
    assert MISSING.search(assembly("float16", POWER))  # it is declined there


@pytest.mark.parametrize(
    ("triple", "features", "expected"),
    [
        ("x86_64-unknown-linux-gnu", "+avx,+f16c", True),
        ("x86_64-pc-windows-msvc", "+avx,-f16c", False),
        ("aarch64-unknown-linux-gnu", "", True),
        ("arm64-apple-darwin24.0.0", "+neon", True),
        ("powerpc64le-unknown-linux-gnu", "+vsx", False),
        ("riscv64-unknown-linux-gnu", "+d,+v", False),
    ],
)
def test_float16_is_declined_without_an_instruction(triple, features, expected, monkeypatch):
    """LLVM calls functions for it there, and aborts the process where it does not find them."""
    assert kernels._can_convert_float16(triple, features) is expected
    if expected:
        return
    fresh = Kernels("llvmlite", launch._load_compiler)
    monkeypatch.setattr(paths, "KERNELS", fresh)
    rope_xp.clear_caches()  # of plans with kernels
    monkeypatch.setattr(kernels, "_describe_host", lambda: (triple, "generic", features))
    x = np.random.default_rng(0).standard_normal((7, 2, 10)).astype(np.float16)
    with pytest.warns(RuntimeWarning, match="no.* known to have an instruction .* float16"):
        got = RoPE().rotate(x)
    np.testing.assert_array_equal(got, truth(RoPE().rotate, x))
    assert "instruction that converts float16" in dict(rope_xp.explain(x, x).declined)["llvm"]
    with pytest.warns(RuntimeWarning, match="instruction that converts float16"):
        rope_xp.RoPE().rotate(x.astype(np.float32), norm=(np.ones(x.shape[-1], x.dtype), 1e-6))


COMPILE = """
import gc, pathlib
from rope_xp_backends.cpu import machine
from rope_xp_backends.cpu.plan import KernelKey

def grow(kernels):
    for _ in range(kernels):
        kernel = machine.compile_kernel(KernelKey("float32", False, False, 8))
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4

before = grow(8)
print(grow(24) - before)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="its /proc says how much memory is resident")
def test_code_of_kernels_that_nobody_holds_leaves_no_memory_behind():
    """LLVM's own pipeline of passes left 500 KB each time; malloc keeps 4 MB more or less."""
    assert int(run("-c", COMPILE)) < 10_000
