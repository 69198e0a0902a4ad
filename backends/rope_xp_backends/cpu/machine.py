"""From a kernel's IR to machine code of this processor."""

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from . import files
from .kernel import ALLOCATE, FREE, NAME, build_ir, list_arguments
from .plan import KernelKey

_MEMORY = {ALLOCATE: "PyMem_RawMalloc", FREE: "PyMem_RawFree"}
"""Functions of Python, on every system, without a lock."""
# Kernels have vectors already, and the short loops around them gain nothing.
_PASSES = {"loop_vectorization": False, "slp_vectorization": False, "loop_unrolling": False}
_CODE = {"opt": 3, "codemodel": "jitdefault", "jit": True}

_alive: list[Any] = []
"""Engines own the memory of machine code."""


def compile_kernel(key: KernelKey) -> Callable[..., int]:
    """Return a kernel: a function of ``list_arguments`` that runs without Python's lock."""
    host = _describe_host()
    dtypes = key.dtype, key.norm and key.norm.weight
    if "float16" in dtypes and not _can_convert_float16(host[0], host[2]):
        msg = "this processor is not known to have an instruction that converts float16"
        raise RuntimeError(msg)
    target, text = _create_target(*host), str(build_ir(key))
    name = f"{key.dtype}-{key.interleaved_in:d}{key.interleaved_out:d}-{_hash_inputs(text, *host)}"
    code = files.read_kernel(name)
    if code is None:
        code = target.emit_object(_optimize(text, target))
        files.write_kernel(name, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _alive.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(list_arguments(key)))
    return kind(engine.get_function_address(NAME))


def emit_assembly(key: KernelKey, *machine: str) -> str:
    """Return the assembly of a kernel, of this machine or of a triple, CPU and features."""
    target = _create_target(*machine or _describe_host())
    return target.emit_assembly(_optimize(str(build_ir(key)), target))  # type: ignore[no-any-return]  # llvmlite has no types


def _optimize(text: str, target: Any) -> Any:
    module = llvm.parse_assembly(text, _create_context())
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_CODE["opt"])
    for name, value in _PASSES.items():
        setattr(options, name, value)
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _create_context() -> Any:
    # LLVM 15 has opaque pointers as an option, which llvmlite 0.44 sets for the whole process.
    if llvm.llvm_version_info[0] == 15:
        return llvm.context.ContextRef(llvm.ffi.lib.LLVMPY_ContextCreate(True))
    return llvm.create_context()


def _create_target(triple: str, cpu: str, features: str) -> Any:
    """Return a target machine. Each kernel has one, as its engine comes to own it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, function in _MEMORY.items():
        address = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
        llvm.add_symbol(name, address)
    return llvm.Target.from_triple(triple).create_target_machine(cpu, features, **_CODE)


def _describe_host() -> tuple[str, str, str]:
    triple, features = llvm.get_process_triple(), llvm.get_host_cpu_features()
    return triple, llvm.get_host_cpu_name(), features.flatten()


def _can_convert_float16(triple: str, features: str) -> bool:
    """Return whether a processor is known to convert float16 by an instruction.

    Elsewhere LLVM calls a function of a compiler's library, and aborts the process without one.
    """
    return triple.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")


def _hash_inputs(text: str, *host: str) -> str:
    """Return a hash of all that machine code depends on: IR, compiler and machine."""
    key = (text, llvmlite.__version__, llvm.llvm_version_info, host, _PASSES, _CODE)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]
