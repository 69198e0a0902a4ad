"""The way from Python into kernels: builtin functions that LLVM compiles.

They take a sixth of the time of ctypes, which for one token takes longer than the kernel.
"""

import ctypes
from typing import Any

from llvmlite import ir

from .kernel import ARGUMENTS
from .language import I32, I64, list_branches

INVOKE, READ = "invoke", "read_pointer"
_OBJECT = ir.PointerType()
_FLAGS = {INVOKE: 0x80, READ: 0x08}
"""How Python calls them: METH_FASTCALL, METH_O."""
PYTHON = {
    "PyLong_AsLongLong": ir.FunctionType(I64, [_OBJECT]),
    "PyLong_FromLongLong": ir.FunctionType(_OBJECT, [I64]),
    "PyErr_BadArgument": ir.FunctionType(I32, []),
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
    """Return the code of two builtin functions.

    ``invoke(kernel, releases, *arguments)`` takes integers, of which ``kernel`` is an address;
    anything else raises Python's own error. ``read_pointer(x)`` returns the pointer that lies
    behind the header of an object, whose class is what the function is bound to.
    """
    module = ir.Module(name=INVOKE)
    python = {name: ir.Function(module, kind, name) for name, kind in PYTHON.items()}
    _build_read(module, python)
    function = ir.Function(module, ir.FunctionType(_OBJECT, [_OBJECT, _OBJECT, I64]), INVOKE)
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


# PyObject *read_pointer(PyObject *self, PyObject *x) {
#     if (Py_TYPE(x) != self) return PyErr_BadArgument(), NULL;
#     return PyLong_FromLongLong(*(int64_t *)(x + 1));
# }
def _build_read(module: ir.Module, python: dict[str, ir.Function]) -> None:
    function = ir.Function(module, ir.FunctionType(_OBJECT, [_OBJECT, _OBJECT]), READ)
    b, (kind, x) = ir.IRBuilder(function.append_basic_block()), function.args

    def read(word: int) -> Any:
        place = b.gep(x, [ir.Constant(I32, word)], source_etype=I64)
        return b.load(place, typ=I64)

    header = object.__basicsize__ // 8
    with b.if_then(b.icmp_signed("!=", read(header - 1), b.ptrtoint(kind, I64)), likely=False):
        b.call(python["PyErr_BadArgument"], [])
        b.ret(ir.Constant(_OBJECT, None))
    b.ret(b.call(python["PyLong_FromLongLong"], [read(header)]))


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def make_builtin(name: str, address: int, bound_to: object = None) -> tuple[Any, object]:
    """Return the builtin function at an address, and what must live as long."""
    definition = _MethodDef(name.encode(), address, _FLAGS[name], None)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype = ctypes.py_object
    create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return create(ctypes.addressof(definition), bound_to, None), definition
