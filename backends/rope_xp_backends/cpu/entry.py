"""The way from Python into kernels: a builtin function that LLVM compiles.

It takes a sixth of the time of ctypes, which for one token takes longer than the kernel.
"""

import ctypes
from typing import Any

from llvmlite import ir

from .kernel import ARGUMENTS
from .language import I32, I64, list_branches

NAME = "invoke"
_OBJECT, _FASTCALL = ir.PointerType(), 0x80
PYTHON = {
    "PyLong_AsLongLong": ir.FunctionType(I64, [_OBJECT]),
    "PyLong_FromLongLong": ir.FunctionType(_OBJECT, [I64]),
    "PyErr_Occurred": ir.FunctionType(_OBJECT, []),
    "PyEval_SaveThread": ir.FunctionType(_OBJECT, []),
    "PyEval_RestoreThread": ir.FunctionType(ir.VoidType(), [_OBJECT]),
}
"""Functions of Python's stable interface, which every system has."""


# PyObject *invoke(PyObject *self, PyObject **arguments, Py_ssize_t count) {
#     kernel, releases, a, b, ... = arguments;
#     if (releases) other threads run Python meanwhile;
#     return kernel(a, b, ...);
# }
def build_ir() -> ir.Module:
    """Return the code of a builtin function ``invoke(kernel, releases, *arguments)``.

    All are integers, of which ``kernel`` is an address; anything else raises Python's own error.
    """
    module = ir.Module(name=NAME)
    python = {name: ir.Function(module, kind, name) for name, kind in PYTHON.items()}
    function = ir.Function(module, ir.FunctionType(_OBJECT, [_OBJECT, _OBJECT, I64]), NAME)
    b, (_, given, _) = ir.IRBuilder(function.append_basic_block()), function.args

    def read(i: int) -> Any:
        place = b.gep(given, [ir.Constant(I32, i)], source_etype=_OBJECT)
        return b.call(python["PyLong_AsLongLong"], [b.load(place, typ=_OBJECT)])

    address, releases, *arguments = map(read, range(2 + len(ARGUMENTS)))
    failed = b.icmp_unsigned("!=", b.call(python["PyErr_Occurred"], []), ir.Constant(_OBJECT, None))
    with b.if_then(failed, likely=False):
        b.ret(ir.Constant(_OBJECT, None))
    kernel = b.inttoptr(address, ir.FunctionType(I64, [I64] * len(arguments)).as_pointer())
    for is_released in list_branches(b, b.icmp_signed("!=", releases, ir.Constant(I64, 0))):
        state = b.call(python["PyEval_SaveThread"], []) if is_released else None
        status = b.call(kernel, arguments)
        if is_released:
            b.call(python["PyEval_RestoreThread"], [state])
        b.ret(b.call(python["PyLong_FromLongLong"], [status]))
    b.unreachable()
    return module


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def make_builtin(address: int) -> tuple[Any, object]:
    """Return the builtin function at an address, and what must live as long."""
    definition = _MethodDef(NAME.encode(), address, _FASTCALL, None)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    return create(ctypes.addressof(definition), None, None), definition
