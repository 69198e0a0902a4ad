"""Kernels for aarch64, run by qemu on an image of the memory of this process."""

import ctypes
import importlib
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rope_xp_backends.cpu.launch import get_kernel_keys
from rope_xp_backends.cpu.plan import FIELDS, TABLES
from rope_xp_backends.numpy import host
from support.bits import same, sample
from support.exhaustive import exhaustive
from support.targets import truth

from rope_xp import RoPE
from rope_xp._arguments import parse

llvm = pytest.importorskip("llvmlite.binding")
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
if not (COMPILER and EMULATOR):
    pytest.skip(
        "aarch64-linux-gnu-gcc or qemu-aarch64 is not installed "
        "(apt-get install gcc-aarch64-linux-gnu qemu-user)",
        allow_module_level=True,
    )

MACHINE = ("aarch64-unknown-linux-gnu", "generic", "")
RUNNER = Path(__file__).parents[2] / "support" / "on_aarch64.c"
PAGE = 1 << 16  # the largest page of aarch64


def build(key, folder):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = importlib.import_module("rope_xp_backends.cpu.machine")
    code, program = folder / "kernel.s", folder / "kernel"
    code.write_text(machine.emit_assembly(key, *MACHINE))
    command = [COMPILER, "-O1", "-static", "-no-pie", str(RUNNER), str(code), "-o", str(program)]
    subprocess.run(command, check=True, timeout=100)
    return program


class Emulated:
    """A kernel that runs in qemu, where memory has the addresses that it has here."""

    def __init__(self, program, arrays):
        self.program, self.arrays = program, arrays

    def __call__(self, _, params, *arguments):
        segments = ctypes.c_int64.from_address(params + 8 * FIELDS.index("segments")).value
        chunks = [(params, 8 * (len(FIELDS) + 3 * segments))]
        chunks.append((arguments[3], 8 * len(TABLES)))
        chunks += [(x.ctypes.data, x.nbytes) for x in self.arrays]
        pages = sorted({p for a, n in chunks for p in range(a // PAGE, (a + n - 1) // PAGE + 1)})
        image = struct.pack("<16q", params, *arguments, len(pages))
        image += b"".join(struct.pack("<2q", page * PAGE, PAGE) for page in pages)
        image += struct.pack("<q", len(chunks))
        offsets = []
        for start, size in chunks:
            image += struct.pack("<2q", start, size)
            offsets.append(len(image))
            image += ctypes.string_at(start, size)
        file = self.program.with_name("memory")
        file.write_bytes(image)
        subprocess.run([EMULATOR, str(self.program), str(file)], check=True, timeout=100)
        after = file.read_bytes()
        for (start, size), offset in zip(chunks, offsets, strict=True):
            ctypes.memmove(start, after[offset : offset + size], size)
        return 0


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("half", "bfloat16"),
        exhaustive("interleaved", "float16"),
        exhaustive("interleaved_to_half", "float32"),
        exhaustive("interleaved", "float64"),
    ],
)
def test_kernels_for_aarch64_have_the_bits_of_numpy(layout, dtype, tmp_path, rng):
    rope = RoPE(layout=layout, rotary_dim=26, rotary_offset=2)
    q, k = (sample(rng, 2, 5, heads, 30, dtype=dtype) for heads in (3, 1))
    (key,) = get_kernel_keys(parse.rotate(rope, (q, k), None, None, None))
    program = build(key, tmp_path)
    for positions in (np.array([0, 5, 2**31 - 1, -7, 70_000]), np.arange(5) + 0.625):
        call = parse.rotate(rope, (q, k), positions, None, None)
        source = call.angles[0]
        outs = np.empty_like(q), np.empty_like(k)
        inputs = host.get_angle_inputs(source)
        tables = [table for table in source.tables if table is not None]
        kernel = Emulated(program, [q, k, *outs, *inputs, *tables])
        host.rotate(kernel, call, outs, source)
        same(outs, truth(rope.apply, q, k, positions))
