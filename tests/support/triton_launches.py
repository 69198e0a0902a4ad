"""Check what CUDA's driver gets from calls with torch, where cuda_driver.c stands for it.

python tests/support/triton_launches.py FOLDER
"""

import ctypes
import os
import re
import subprocess
import sys

os.environ["TRITON_LIBCUDA_PATH"] = os.environ["TRITON_CACHE_DIR"] = sys.argv[1]

from pathlib import Path

import torch
from rope_xp_backends.gpu import triton_compile
from rope_xp_backends.torch.library import Torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

import rope_xp
from rope_xp import QKNorm, RoPE
from support.targets import give_cpu_to_triton

DRIVER = Path(sys.argv[1], "libcuda.so.1")
SOURCE = Path(__file__).with_name("cuda_driver.c")
H100 = GPUTarget("cuda", 90, 32)


class Driver(CudaDriver):
    """Triton's, but for what it asks torch, which is built for CPUs here."""

    def __init__(self):
        super().__init__()
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda _: 7
        self.get_device_capability = lambda _: (9, 0)


flags = ("-shared", "-fPIC", "-w", f"-Wl,-soname,{DRIVER.name}")
subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(DRIVER)], check=True)
stand_in = ctypes.CDLL(str(DRIVER), mode=ctypes.RTLD_GLOBAL)
driver.set_active(Driver())
give_cpu_to_triton()
Torch.host_view = lambda *_: None  # type: ignore[method-assign]  # nobody reads positions on a GPU
load, launched = triton_compile.load_kernel, []


def seen(name, count=1, kind=ctypes.c_uint):
    return list((kind * count).in_dll(stand_in, name))


def watched(variant):
    """Return the launch of a kernel, which checks that the driver gets what goes in."""
    launch = load(variant)
    ptx = triton_compile.compile_kernel(variant, H100).asm["ptx"]
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.u(\d+)", ptx[: ptx.index(")")])]

    def run(grid, tensors, numbers):
        stand_in.expect(len(sizes), (ctypes.c_int32 * len(sizes))(*sizes))
        (before,) = seen("launches")
        launch(grid, tensors, numbers)
        assert seen("launches") == [before + 1]
        assert seen("last", 6) == [*grid, triton_compile.THREADS, 1, 1]
        given = [t.data_ptr() for t in tensors if t is not None]
        given += [n for n in numbers if n is not None]
        # Triton adds the addresses of two scratch memories, which this kernel lacks.
        expected = [n % (1 << 8 * size) for n, size in zip([*given, 0, 0], sizes, strict=True)]
        assert seen("values", len(sizes), ctypes.c_uint64) == expected
        launched.append(variant.int64_offsets)

    return run


def main():
    triton_compile.load_kernel = watched
    q, k = torch.ones(2, 7, 8, 64, dtype=torch.bfloat16), torch.ones(2, 7, 2, 64).bfloat16()
    at, rope = torch.arange(7) + 1_000_000, RoPE(layout="half")
    tables = rope.cos_sin(at, 64)
    angles = rope.with_tables(*(table.bfloat16() for table in tables))
    slots, cache = torch.arange(14).view(2, 7), torch.ones(20, 2, 64, dtype=torch.bfloat16)
    norm = QKNorm(torch.ones(64), torch.ones(64))
    # As nothing is computed, its pages are never touched.
    large = torch.empty(1, (1 << 17) + 3, 128, 128, dtype=torch.bfloat16)
    # Each with the launches of kernels that no earlier call has loaded, by whether they count in 64
    # bits. Rows of one token take no division.
    calls = [
        ([False], lambda: rope.apply(q, k, at)),
        ([False], lambda: rope.apply(q, k, at, out=(q, k))),
        ([False], lambda: rope.apply(q[:, :1], k[:, :1], at[:1])),
        ([False], lambda: rope.apply(q, k, at, norm=norm)),
        ([False], lambda: rope_xp.apply_tables(q, *tables, layout="half")),
        ([False], lambda: angles.rotate(q)),
        ([False], lambda: rope.apply(q, k, at, slots=slots, out=(None, cache))),
        ([False], lambda: rope.apply(q, k, at, slots=slots, out=(q, cache.view(4, 5, 2, 64)))),
        ([False], lambda: rope.apply(q, k[:, :5], at, k_positions=at[:5], out=(q, k[:, :5]))),
        ([False], lambda: rope_xp.apply_angles(q, k, tables[0], k_angles=tables[1], out=(q, k))),
        ([False, False], lambda: rope.apply(q, k.float(), at)),
        ([True], lambda: rope.rotate(large, out=large)),
    ]
    with torch.no_grad(), rope_xp.use_path("triton"):
        for expected, call in calls:
            launched.clear()
            (before,) = seen("modules")
            call()
            assert launched == expected
            assert seen("modules") == [before + len(expected)]
            assert seen("capture_mode", kind=ctypes.c_int32) == [0]  # as it was before
    print("every launch is right")


if __name__ == "__main__":
    main()
