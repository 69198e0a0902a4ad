"""The kernel for GPUs on the CPU: compiled by g++, launched as cupy's path does, in one thread."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from rope_xp_backends.gpu import cuda, cuda_plan
from rope_xp_backends.gpu.cuda_plan import CudaKey
from rope_xp_backends.numpy import paths as glue

from rope_xp._core.dtypes import FLOATS
from rope_xp._core.path import Path as _Path

NVRTC = "libnvrtc.so.13"
KERNELS = Path(cuda.__file__).parent
# No fused multiply-add, as in PTX; unoptimised, as compiling would take longer than running.
FLAGS = (
    *("-std=c++17", "-O0", "-ffp-contract=off", "-fno-strict-aliasing", "-fsanitize=alignment"),
    *("-shared", "-fPIC", "-w"),
)


def cuda_folder(name):
    """Return a folder of NVIDIA's wheels for CUDA 13, such as include or lib."""
    if importlib.util.find_spec("nvidia") is None:
        return None
    found = importlib.util.find_spec("nvidia.cu13")
    places = (found.submodule_search_locations or []) if found else []
    return next((path for place in places if (path := Path(place) / name).is_dir()), None)


def decline_reason():
    if importlib.util.find_spec("cupy") is None:
        return "cupy, whose path this is, is not installed"
    if shutil.which("g++") is None:
        return "there is no g++"
    for folder, file in (("include", "cuda_bf16.h"), ("lib", NVRTC), ("bin", "nvdisasm")):
        found = cuda_folder(folder)
        if found is None or not (found / file).exists():
            return f"there is no {file} of CUDA 13 (pip install --group gpu-test)"
    return None


@lru_cache
def _library(norm_dtype):
    """Compile the kernel for every key, without a norm or with that of a dtype.

    That takes five seconds, so one process of a run does it for all.
    """
    import fcntl  # which Windows lacks

    source = Path(__file__).with_suffix(".cpp").read_text()
    for key, i in _numbers(norm_dtype).items():
        source += (
            f'extern "C" bool launch_{i}(const unsigned *grid, const unsigned *block, '
            f"const void *words) {{ return run(call<{key.expression}>, "
            f"{int(together(key))}, grid, block, words); }}\n"
        )
    source += 'extern "C" size_t size() { return sizeof(Arguments); }\n'
    include = cuda_folder("include")
    file = Path(os.environ["ROPE_XP_TEST_BUILDS"], f"{norm_dtype}.cpp")
    made = file.with_suffix(".so")
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            file.write_text(source)
            paths = [f"-I{path}" for path in (include, include / "cccl", KERNELS)]
            command = ["g++", *FLAGS, *paths, str(file), "-o", str(made)]
            subprocess.run(command, check=True, timeout=300)
    library = ctypes.CDLL(str(made))
    library.size.restype = ctypes.c_size_t
    assert library.size() == 8 * cuda_plan.N_ARGUMENTS
    return library


def together(key):
    """Return whether threads wait for each other between reading a head and writing it."""
    return key.norm or (key.in_place and key.interleaved_in != key.interleaved_out)


def launch(key, grid, block, words):
    assert words.size == 1  # cupy passes no other array by value
    of = key.dtype if key.norm else None
    assert words.itemsize == 8 * cuda_plan.N_ARGUMENTS
    function = getattr(_library(of), f"launch_{_numbers(of)[key]}")
    function.restype = ctypes.c_bool
    integers = ctypes.c_uint * 3
    aligned = function(integers(*grid), integers(*block), ctypes.c_void_p(words.ctypes.data))
    assert aligned, f"{key} reads or writes where an access of its width may not"


def every_key():
    flags = (True, False)
    for (dtype, size), pairs_in, pairs_out in product(FLOATS.items(), flags, flags):
        sources = range(1 if size == 8 else 3)  # float64 is given cos and sin
        accesses = [access for access in (16, 8, 4, 2) if access >= size]
        for access, source, in_place in product(accesses, sources, flags):
            yield CudaKey(dtype, pairs_in, pairs_out, access, source, in_place)


@lru_cache
def _numbers(norm_dtype):
    keys = [key for key in every_key() if norm_dtype in (None, key.dtype)]
    return {key._replace(norm=bool(norm_dtype)): i for i, key in enumerate(keys)}


class Cuda(_Path):
    name = "cuda"
    normalizes = takes_slots = True
    ran = ()

    def decline_reason(self, call, *, forced):
        return cuda.decline_reason(call)

    def run(self, call):
        outs = call.out or glue._allocate(call)
        if call.slots is not None:
            outs = outs[0], call.slots.cache
        self.ran = cuda.build_launches(call, outs, lambda x: np.array(x, order="C"))
        for ran in self.ran:
            launch(ran.key, ran.grid, ran.block, ran.argument)
        return outs


PATH = Cuda()


def get_keys():
    return [launch.key for launch in PATH.ran]
