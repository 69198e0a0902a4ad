"""What NVRTC makes of the kernel for GPUs, without a GPU: registers, accesses, arithmetic."""

import ctypes
import importlib
import re
import subprocess
from collections import Counter

import pytest
from rope_xp_backends.gpu.cuda_plan import COMPONENTS, COS_SIN, NARROW_COS_SIN, TABLE_LOOKUP
from support import cuda_on_cpu
from support.cases import slow
from support.cuda_on_cpu import every_key

WIDE = [key for key in every_key() if key.access == 16]
# For arrays that lie askew: one generation stands for all, and bfloat16 for float16.
NARROW = [
    key
    for key in every_key()
    if key.access < 16 and key.dtype != "float16" and key.source != COMPONENTS
]
NORM = [key for key in cuda_on_cpu.norm_keys() if key.access == 16]
APART = [key._replace(apart=True) for key in WIDE + NORM]
EVERY = WIDE + APART
MATRIX = {"sm_80": EVERY, "sm_90": EVERY + NARROW + NORM, "sm_100": EVERY, "sm_120": EVERY}
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([\w.]+)", re.MULTILINE)
REPORT = re.compile(r"Compiling entry function '(\w+)'(.*?)Used (\d+) registers", re.DOTALL)
# A block has 256 threads and a multiprocessor 65536 registers: two blocks of 128, three of 80.
REGISTERS = {
    arch: {COS_SIN: few, NARROW_COS_SIN: few, TABLE_LOOKUP: few, COMPONENTS: 128}
    for arch, few in {"sm_80": 80, "sm_90": 80, "sm_100": 128, "sm_120": 128}.items()
}
WIDTHS = {16: {"128"}, 8: {"64"}, 4: set(), 2: {"U16"}}


@pytest.fixture(scope="module")
def nvrtc():
    if reason := cuda_on_cpu.decline_reason():
        pytest.skip(reason)
    folder = cuda_on_cpu.cuda_folder("lib")
    # cupy finds it by itself in site-packages, this also anywhere else on the path.
    ctypes.CDLL(str(folder / cuda_on_cpu.NVRTC), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("cupy.cuda").nvrtc


def compiled(nvrtc, arch, keys):
    """Return the keys by their names in a cubin, what the assembler says, and the cubin."""
    kernels = importlib.import_module("rope_xp_backends.cupy.paths")
    include = cuda_on_cpu.cuda_folder("include")
    # As cupy calls it, but for the report and the folder of headers.
    options = (
        *kernels.OPTIONS,
        *("-ftz=true", "--device-as-default-execution-space", f"-arch={arch}"),
        *(f"-I{include}", f"-I{include / 'cccl'}", "--ptxas-options=-v"),
    )
    program = nvrtc.createProgram(kernels.SOURCE.read_text(), "rotate.cu", (), ())
    for key in keys:
        nvrtc.addNameExpression(program, key.expression)
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    names = {nvrtc.getLoweredName(program, key.expression): key for key in keys}
    # cupy takes the last byte for the end of a string.
    return names, nvrtc.getProgramLog(program), nvrtc.getCUBIN(program) + b"\0"


def disassembled(cubin, folder):
    program = cuda_on_cpu.cuda_folder("bin") / "nvdisasm"
    (folder / "kernels.cubin").write_bytes(cubin)
    command = [str(program), "-c", str(folder / "kernels.cubin")]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    sections = re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]
    return {section.partition(":")[0]: INSTRUCTION.findall(section) for section in sections}


# Steps are primes, so that they reach every width of every dtype and layout.
@pytest.mark.parametrize(
    ("arch", "every"),
    [("sm_90", 41), *(slow(arch, 7) for arch in MATRIX)],
)
def test_kernels_fit_registers_and_spill_nothing(arch, every, nvrtc, tmp_path):
    keys = MATRIX[arch][::every]
    names, log, cubin = compiled(nvrtc, arch, keys)
    reports = REPORT.findall(log)
    assert {names[name] for name, *_ in reports} == set(keys)
    for name, report, registers in reports:
        key = names[name]
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report, key
        most = 128 if key.norm or key.apart else REGISTERS[arch][key.source]
        assert int(registers) <= most, (key, registers)
    kernels = disassembled(cubin, tmp_path)
    assert {names[name] for name in kernels} == set(keys)
    for name, instructions in kernels.items():
        check_instructions(names[name], instructions)


def check_instructions(key, instructions):
    parts = [instruction.split(".") for instruction in instructions]
    count = Counter(part[0] for part in parts)
    # A reciprocal root in float64 is a function of its own.
    names = (
        {"LDL", "STL"} if key.norm and key.dtype == "float64" else {"FFMA", "DFMA", "LDL", "STL"}
    )
    fused_or_local = names & set(count)
    assert not fused_or_local, (key, fused_or_local)
    # A division of integers, by pages, has a conversion with it.
    assert not any("FTZ" in part for part in parts if part[0] != "F2I"), key
    # Angles and positions are constant; q and k are read once (EF), or written over.
    accesses = [p for p in parts if p[0] == "STG" or (p[0] == "LDG" and "CONSTANT" not in p)]
    assert {"EF" in p for p in accesses if p[0] == "LDG"} == {not key.in_place}, key
    loads = [p for p in parts if p[0] == "LDG"]
    if key.source == TABLE_LOOKUP:  # where angles wait for positions
        assert loads[0] in accesses, key
    kinds = {frozenset(p[1:]) & {"128", "64", "U16"} for p in accesses}
    assert kinds == {frozenset(WIDTHS[key.access])}, (key, kinds)
    assert count["STG"] >= 4, key
    assert (count["BAR"] > 0) == cuda_on_cpu.together(key), key
