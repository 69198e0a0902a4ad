"""What NVRTC makes of the kernel for GPUs, without a GPU: registers, accesses, arithmetic."""

import ctypes
import importlib
import re
import subprocess
from collections import Counter

import pytest
from rope_xp_backends.gpu.cuda_plan import COMPONENTS, TABLE_LOOKUP
from support import cuda_on_cpu
from support.cases import slow
from support.cuda_on_cpu import every_key

# For arrays that lie askew, one generation stands for all, and bfloat16 for float16.
NARROW = [
    k for k in every_key() if k.access < 16 and k.dtype != "float16" and k.source != COMPONENTS
]
WIDE = [key for key in every_key() if key.access == 16]
NORM = [key._replace(norm=True) for key in WIDE]
MATRIX = dict.fromkeys(("sm_80", "sm_90", "sm_100", "sm_120"), WIDE + NORM)
MATRIX["sm_90"] = WIDE + NORM + NARROW
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([\w.]+)", re.MULTILINE)
REPORT = re.compile(r"Compiling entry function '(\w+)'(.*?)Used (\d+) registers", re.DOTALL)
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
    kernels = importlib.import_module("rope_xp_backends.cupy")
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
    """Yield the name of each kernel with its instructions, in parts."""
    (folder / "kernels.cubin").write_bytes(cubin)
    command = [cuda_on_cpu.cuda_folder("bin") / "nvdisasm", "-c", folder / "kernels.cubin"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    for section in re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]:
        yield section.partition(":")[0], [i.split(".") for i in INSTRUCTION.findall(section)]


# Steps are primes, so that they reach every width of every dtype and layout.
@pytest.mark.parametrize(("arch", "every"), [("sm_90", 41), *(slow(arch, 7) for arch in MATRIX)])
def test_kernels_fit_registers_and_spill_nothing(arch, every, nvrtc, tmp_path):
    keys = MATRIX[arch][::every]
    names, log, cubin = compiled(nvrtc, arch, keys)
    reports = REPORT.findall(log)
    assert {names[name] for name, *_ in reports} == set(keys)
    for name, report, registers in reports:
        key = names[name]
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report, key
        # A block has 256 threads and a multiprocessor 65536 registers: two blocks of 128, three
        # of 80.
        is_small = arch in ("sm_80", "sm_90") and key.source != COMPONENTS
        most = 80 if is_small and not (key.norm) else 128
        assert int(registers) <= most, (key, registers)
    kernels = dict(disassembled(cubin, tmp_path))
    assert {names[name] for name in kernels} == set(keys)
    for name, parts in kernels.items():
        check_instructions(names[name], parts)


def check_instructions(key, parts):
    count = Counter(part[0] for part in parts)
    # A reciprocal root in float64 is a function of its own.
    forbidden = {"LDL", "STL"}
    forbidden |= set() if key.norm and key.dtype == "float64" else {"FFMA", "DFMA"}
    assert not forbidden & set(count), key
    # A division of integers, by pages, has a conversion with it.
    assert not any("FTZ" in part for part in parts if part[0] != "F2I"), key
    # Angles and positions are constant; q and k are read once (EF), or written over.
    loads = [p for p in parts if p[0] == "LDG"]
    of_rows = [p for p in loads if "CONSTANT" not in p]
    assert {"EF" in p for p in of_rows} == {not key.in_place}, key
    if key.source == TABLE_LOOKUP:  # where angles wait for positions
        assert "CONSTANT" not in loads[0], key
    accesses = of_rows + [p for p in parts if p[0] == "STG"]
    kinds = {frozenset(p[1:]) & {"128", "64", "U16"} for p in accesses}
    assert kinds == {frozenset(WIDTHS[key.access])}, (key, kinds)
    assert count["STG"] >= 4, key
    assert (count["BAR"] > 0) == cuda_on_cpu.together(key), key
