"""From a kernel's IR to machine code of this processor."""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import llvmlite.binding as llvm

from . import entry
from .kernel import ALLOCATE, FREE, NAME, build_ir
from .plan import KernelKey

_PYTHON = {ALLOCATE: "PyMem_RawMalloc", FREE: "PyMem_RawFree", **{n: n for n in entry.PYTHON}}
"""Functions of Python, on every system. The first two need no lock."""
_CODE = {"opt": 3, "codemodel": "jitdefault", "jit": True}

_unused: list[Any] = []
"""Engines of kernels that nobody holds. Only compiling frees them, which forks wait for: a child
could not use LLVM if another thread was in it at the fork."""
_builtins: list[object] = []
"""What must live as long as builtin functions."""


def compile_kernel(key: KernelKey) -> Callable[..., int]:
    """Return a kernel, a function of integers.

    The first says whether it runs without Python's lock, and the others are ``kernel.ARGUMENTS``.
    """
    host = _describe_host()
    dtypes = key.dtype, key.norm and key.norm.weight
    if "float16" in dtypes and not _can_convert_float16(host[0], host[2]):
        msg = "this processor is not known to have an instruction that converts float16"
        raise RuntimeError(msg)
    _unused.clear()
    engine = _load(_parse(key, host[2]), host)
    kernel = partial(_get_invoke(host), engine.get_function_address(NAME))
    weakref.finalize(kernel, _unused.append, engine).atexit = False
    return kernel


@cache
def get_pointer_reader(kind: type) -> Callable[[object], int]:
    """Return a function that returns the pointer behind the header of an object of a class."""
    engine = _load_builtins(_describe_host())
    reader, held = entry.make_builtin(
        entry.READ, engine.get_function_address(entry.READ), bound_to=kind
    )
    _builtins.append((held, engine))
    return reader  # type: ignore[no-any-return]  # a builtin function


@cache
def _get_invoke(host: tuple[str, str, str]) -> Any:
    """Return the builtin function that calls kernels."""
    engine = _load_builtins(host)
    invoke, held = entry.make_builtin(entry.INVOKE, engine.get_function_address(entry.INVOKE))
    _builtins.append((held, engine))
    return invoke


@cache
def _load_builtins(host: tuple[str, str, str]) -> Any:
    """Return the engine of builtin functions."""
    return _load(_verify(entry.build_ir()), host)


def _load(module: Any, host: tuple[str, str, str]) -> Any:
    """Return the engine that holds the machine code of a module."""
    code = _create_target(*host).emit_object(module)
    # The engine keeps a target machine. One that has emitted code holds 0.8 MB.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _create_target(*host))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def emit_assembly(key: KernelKey, *machine: str) -> str:
    """Return the assembly of a kernel, of this machine or of a triple, CPU and features."""
    host = machine or _describe_host()
    target = _create_target(*host)
    return target.emit_assembly(_parse(key, host[2]))  # type: ignore[no-any-return]  # llvmlite has no types


def _parse(key: KernelKey, features: str) -> Any:
    """Return the module of a kernel.

    The code generator alone makes it as fast as all of LLVM's passes, and in half the time.
    """
    needed = {"+avx512bf16", "+avx512dq"}
    # Older versions of LLVM call a function that no library has.
    rounds = llvm.llvm_version_info[0] >= 20 and needed <= set(features.split(","))
    return _verify(build_ir(key._replace(rounds_bfloat16=rounds)))


def _verify(code: Any) -> Any:
    """Return LLVM's module of checked code."""
    module = llvm.parse_assembly(str(code), _create_context())
    module.verify()
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
    for name, function in _PYTHON.items():
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
