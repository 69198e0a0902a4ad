"""Kernels for aarch64, compiled by zig, run by an emulator on the memory of this process."""

import importlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rope_xp_backends.cpu import native as _loaded
from support.bits import same, sample
from support.targets import truth
from support.ways import decline_all

import rope_xp
from rope_xp import QKNorm, RoPE
from rope_xp._core.tables import make_table_key
from rope_xp._rotation.tables import host_tables, small_tables

unicorn = pytest.importorskip("unicorn")
pytest.importorskip("ziglang")
arm64 = importlib.import_module("unicorn.arm64_const")

PAGE, LOAD = 4096, 1
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu", "-mcpu=baseline"]
COMPILED = "-std=c++17 -O2 -fno-exceptions -fno-rtti -fno-math-errno -DLEVEL=0 -ffp-contract=off -c"
# A program that starts where the table of kernels is, at addresses that this process does not use.
LINKED = "-static -nostdlib -s -Wl,-e,rope_xp_kernels_0 -Wl,--image-base=0x100000000000"
CASES = [
    ("half", "bfloat16", False),
    ("interleaved", "float16", False),
    ("interleaved_to_half", "float32", False),
    ("interleaved", "float64", False),
    ("half", "float32", True),
    ("interleaved", "bfloat16", True),
]


def build(folder):
    """Return the compiled kernels, which takes half a minute."""
    unit, program = folder / "rotate.o", folder / "rotate"
    source = Path(_loaded.__file__).with_name("rotate.cpp")
    caches = {f"ZIG_{name}_CACHE_DIR": str(folder) for name in ("GLOBAL", "LOCAL")}
    for flags, given, made in ((COMPILED, source, unit), (LINKED, unit, program)):
        command = [*ZIG, *flags.split(), given, "-o", made]
        subprocess.run(command, check=True, env=os.environ | caches, timeout=500)
    return program.read_bytes()


class Emulated:
    """The native module, but that an emulator runs its kernels, in the memory of this process."""

    def __init__(self, program):
        self.rotated, self.native = 0, _loaded.module
        self.read_tables, self.set_up_dtypes = self.native.read_tables, self.native.set_up_dtypes
        self.table, headers, *_, count = struct.unpack_from("<QQQIHHH", program, 24)
        segments = struct.iter_unpack("<2I6Q", program[headers : headers + 56 * count])
        self.segments = [
            (address, size, program[offset : offset + length])
            for kind, _, offset, address, _, length, size, _ in segments
            if kind == LOAD
        ]

    def rotate(self, arrays, *arguments):
        self.rotated += 1
        job = self.native.rotate(arrays, *arguments[:-1], True)
        job = np.frombuffer(job, np.uint8)
        scratch = np.zeros(self._run(0, job.ctypes.data) + 64, np.uint8)
        rows, place = arrays[0].shape[0] * arrays[0].shape[1], scratch.ctypes.data
        for start, stop in ((0, 3), (3, rows)):
            self._run(1, job.ctypes.data, start, stop, place + -place % 64)
        return True

    def _run(self, function, *arguments):
        emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        emulator.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, _map_pages)
        for address, size, content in self.segments:
            pages = range(address // PAGE, (address + size - 1) // PAGE + 1)
            emulator.mem_map(pages.start * PAGE, len(pages) * PAGE)
            emulator.mem_write(address, content)
        stack = np.zeros(1 << 16, np.int64)
        emulator.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # lets it use vectors
        emulator.reg_write(arm64.UC_ARM64_REG_SP, (stack.ctypes.data + stack.nbytes) & -16)
        emulator.reg_write(arm64.UC_ARM64_REG_LR, 0)
        for i, value in enumerate(arguments):
            emulator.reg_write(arm64.UC_ARM64_REG_X0 + i, value)
        functions = struct.unpack("<2Q", emulator.mem_read(self.table, 16))
        emulator.emu_start(functions[function], 0)
        return emulator.reg_read(arm64.UC_ARM64_REG_X0)


def _map_pages(emulator, _access, address, size, *_):
    """Map the pages that a kernel touches first, and return whether it can go on."""
    for page in {address // PAGE, (address + size - 1) // PAGE}:
        if not any(start <= page * PAGE <= end for start, end, _ in emulator.mem_regions()):
            emulator.mem_map_ptr(page * PAGE, PAGE, unicorn.UC_PROT_ALL, page * PAGE)
    return True


@pytest.mark.slow
def test_kernels_for_aarch64_have_the_bits_of_numpy(native, monkeypatch, tmp_path, rng):
    emulated = Emulated(build(tmp_path))
    decline_all(monkeypatch)
    monkeypatch.setattr(_loaded, "module", emulated)
    for layout, dtype, normalizes in CASES:
        rope = RoPE(layout=layout, rotary_dim=26, rotary_offset=2)
        q, k = (sample(rng, 2, 5, heads, 30, dtype=dtype) for heads in (3, 1))
        if dtype == "float32":  # as the first calls of a rope have it
            table_key = make_table_key(rope, 30, inverse=False, double=False)
            small, tables = small_tables(table_key), host_tables(table_key)
            handle = emulated.native.read_tables(tuple(small), small.factor)
            object.__setattr__(tables, "handle", handle)
        norm = QKNorm(*(sample(rng, 30, dtype=dtype) for _ in "qk")) if normalizes else None
        for positions in (np.array([0, 5, 2**31 - 1, -7, 70_000]), np.arange(5) + 0.625):
            with rope_xp.use_path("native"):
                got = rope.apply(q, k, positions, norm=norm)
            same(got, truth(rope.apply, q, k, positions, norm=norm))
    assert emulated.rotated == 2 * len(CASES)
