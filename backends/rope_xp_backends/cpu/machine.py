"""From a kernel that is written to one that can be called: machine code of this processor."""

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from . import files
from .kernel import ALLOCATE, ARGUMENTS, FREE, NAME, written
from .plan import Form

_MEMORY = {ALLOCATE: "PyMem_RawMalloc", FREE: "PyMem_RawFree"}
"""Of Python, which has them on every system. They need no lock of it."""
_OPTIMISED = 3

_alive: list[Any] = []
"""What machine code lies in; it is run for as long as the process."""


def compiled(form: Form) -> Callable[..., int]:
    """Return the kernel of a form: a function of ARGUMENTS that leaves Python's lock alone."""
    if form.dtype == "float16" and not _converts_float16():
        msg = "this processor has no instruction that converts float16"
        raise RuntimeError(msg)
    target = _target()
    name = f"{form.dtype}-{form.read_pairs:d}{form.write_pairs:d}"
    code = files.read(_digest(), name)
    if code is None:
        code = _translated(form, target)
        files.keep(_digest(), name, code)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _alive.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(ARGUMENTS))
    return kind(engine.get_function_address(NAME))


def assembly(form: Form) -> str:
    """Return what machine code says, for those who count instructions."""
    target = _target()
    return target.emit_assembly(_optimised(form, target))  # type: ignore[no-any-return]  # llvmlite has no types


def _translated(form: Form, target: Any) -> bytes:
    return target.emit_object(_optimised(form, target))  # type: ignore[no-any-return]  # likewise


def _optimised(form: Form, target: Any) -> Any:
    module = llvm.parse_assembly(str(written(form)))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISED)
    # Vectors are written as such, and short loops around them have nothing to gain.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    return module


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, function in _MEMORY.items():
        address = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
        llvm.add_symbol(name, address)
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        *_processor(), opt=_OPTIMISED, codemodel="jitdefault", jit=True
    )


def _converts_float16() -> bool:
    """Return whether LLVM needs no function of a compiler's own library for it."""
    on_x86 = llvm.get_process_triple().startswith(("x86", "i386", "i686"))
    return not on_x86 or bool(llvm.get_host_cpu_features().get("f16c"))


def _processor() -> tuple[str, str]:
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def _digest() -> str:
    """Return a name for all that machine code depends on beside its form."""
    made_of = hashlib.sha256()
    for word in (llvmlite.__version__, llvm.get_process_triple(), *_processor(), *files.sources()):
        made_of.update(word if isinstance(word, bytes) else word.encode())
    return made_of.hexdigest()[:16]
