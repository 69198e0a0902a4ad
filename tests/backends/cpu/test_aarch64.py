"""Kernels for aarch64, run by an emulator on the memory of this process."""

import ctypes
import importlib

import numpy as np
import pytest
from rope_xp_backends.cpu.kernel import NAME
from rope_xp_backends.cpu.launch import get_kernel_keys
from rope_xp_backends.numpy import host
from support.bits import same, sample
from support.exhaustive import exhaustive
from support.targets import truth

from rope_xp import QKNorm, RoPE
from rope_xp._arguments import parse

llvm = pytest.importorskip("llvmlite.binding")
unicorn = pytest.importorskip("unicorn")
arm64 = importlib.import_module("unicorn.arm64_const")

MACHINE = ("aarch64-unknown-linux-gnu", "generic", "")
PAGE = 4096
IN_REGISTERS = 8
"""So many arguments are passed in registers, and the others on the stack."""


def _declare(function, *arguments):
    """Return the address of a function of C, what calls it, and how many arguments it takes."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    return address, (ctypes.CFUNCTYPE(ctypes.c_void_p, *arguments)(address), len(arguments))


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
FUNCTIONS = dict(
    [
        _declare(ctypes.pythonapi.PyMem_RawMalloc, _SIZE),
        _declare(ctypes.pythonapi.PyMem_RawFree, _POINTER),
        _declare(ctypes.CDLL(None).memcpy, _POINTER, _POINTER, _SIZE),
    ]
)
"""Functions of this process that kernels call, which are no code of aarch64, by their addresses."""


class Emulated:
    """A kernel in an emulator whose memory is that of this process, at the same addresses."""

    def __init__(self, key):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = importlib.import_module("rope_xp_backends.cpu.machine")
        self.engine = machine._load(machine._parse(key, ""), MACHINE)

    def __call__(self, _, *arguments):
        emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        emulator.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, _map_pages)
        emulator.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # lets it use vectors
        stack = np.zeros(1 << 13, np.int64)
        top = (stack.ctypes.data + stack.nbytes // 2) & -16
        rest = np.array(arguments[IN_REGISTERS:], np.int64)
        ctypes.memmove(top, rest.ctypes.data, rest.nbytes)
        emulator.reg_write(arm64.UC_ARM64_REG_SP, top)
        emulator.reg_write(arm64.UC_ARM64_REG_LR, 0)
        registers = [arm64.UC_ARM64_REG_X0 + i for i in range(IN_REGISTERS)]
        for register, value in zip(registers, arguments, strict=False):
            emulator.reg_write(register, value)
        address = self.engine.get_function_address(NAME)
        while address:
            try:
                emulator.emu_start(address, 0)
            except unicorn.UcError as error:
                if error.errno != unicorn.UC_ERR_FETCH_UNMAPPED:
                    raise
            address = emulator.reg_read(arm64.UC_ARM64_REG_PC)
            if address:
                function, count = FUNCTIONS[address]
                result = function(*map(emulator.reg_read, registers[:count]))
                emulator.reg_write(registers[0], result or 0)
                address = emulator.reg_read(arm64.UC_ARM64_REG_LR)
        return emulator.reg_read(registers[0])


def _map_pages(emulator, _access, address, size, *_):
    """Map the pages that a kernel touches first, and return whether it can go on."""
    if address in FUNCTIONS:
        return False
    for page in {address // PAGE, (address + size - 1) // PAGE}:
        if not any(start <= page * PAGE <= end for start, end, _ in emulator.mem_regions()):
            emulator.mem_map_ptr(page * PAGE, PAGE, unicorn.UC_PROT_ALL, page * PAGE)
    return True


@pytest.mark.parametrize(
    ("layout", "dtype", "normalizes"),
    [
        ("half", "bfloat16", False),
        exhaustive("interleaved", "float16", False),
        exhaustive("interleaved_to_half", "float32", False),
        exhaustive("interleaved", "float64", False),
        exhaustive("half", "float32", True),
        exhaustive("interleaved", "bfloat16", True),
    ],
)
def test_kernels_for_aarch64_have_the_bits_of_numpy(layout, dtype, normalizes, rng):
    rope = RoPE(layout=layout, rotary_dim=26, rotary_offset=2)
    q, k = (sample(rng, 2, 5, heads, 30, dtype=dtype) for heads in (3, 1))
    norm = QKNorm(*(sample(rng, 30, dtype=dtype) for _ in "qk")) if normalizes else None
    (key,) = get_kernel_keys(parse.rotate(rope, (q, k), None, None, None, False, norm))
    kernel = Emulated(key)
    for positions in (np.array([0, 5, 2**31 - 1, -7, 70_000]), np.arange(5) + 0.625):
        call = parse.rotate(rope, (q, k), positions, None, None, False, norm)
        outs = np.empty_like(q), np.empty_like(k)
        host.rotate(kernel, call, outs, call.angles[0])
        same(outs, truth(rope.apply, q, k, positions, norm=norm))
