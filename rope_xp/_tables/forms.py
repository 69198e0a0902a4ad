"""Tables of cos and sin as other engines keep them. See :meth:`rope_xp.RoPE.table`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._arguments.columns import Columns, doubled
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Layout, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

FORMS = ("vllm", "huggingface", "megatron", "complex", "onnx")
_NARROW = ("float16", "bfloat16")
_REAL = ("float32", "float64", *_NARROW)
_COMPLEX = ("complex64", "complex128")


def check_form(form: object) -> None:
    """Check that there is such a form."""
    if form not in FORMS:
        msg = f"form must be one of {', '.join(map(repr, FORMS))}; got {form!r}"
        raise RopeError(msg)


def host_backend(xp: Namespace | None) -> Backend:
    """Return the backend of a table, if no compiler traces the call."""
    backend = find.require_backend_of_namespace(np if xp is None else xp)
    if backend.is_compiling():
        msg = (
            "table is made on the host in float64, which no graph can do; call it once, outside "
            "of the compiled function, and hand the table in"
        )
        raise RopeError(msg)
    return backend


def arrange(
    form: str, layout: Layout, cos: NDArray[np.float64], sin: NDArray[np.float64]
) -> tuple[NDArray[Any], ...]:
    """Return the one or two tables of a form, in float64, from cos and sin (positions, r/2)."""
    if form == "vllm":
        return (np.concatenate([cos, sin], axis=-1),)
    if form == "complex":
        return (cos + 1j * sin,)
    if form == "onnx":
        return cos, sin
    # A column for each component, where the functions that take it expect its pair.
    twice: Columns = "neighbours" if layout == "interleaved" else "halves"
    if form == "huggingface":
        return doubled(np, cos, twice), doubled(np, sin, twice)
    # Whole turns less: they would take all of a float32's digits, and cos and sin do not see them.
    return (doubled(np, np.arctan2(sin, cos), twice)[:, None, None, :],)


def round_once(backend: Backend, host: NDArray[Any], device: Device | None, dtype: Any) -> Array:
    """Return a table of float64 or complex128 as an array of a library, rounded once."""
    is_complex = host.dtype.kind == "c"
    known, default = (_COMPLEX, "complex64") if is_complex else (_REAL, "float32")
    if dtype is None:
        return backend.asarray(host.astype(default), device)
    name = backend.dtype_name(backend.xp.empty((0,), dtype=dtype))
    if name not in known:
        msg = f"dtype must be one of {', '.join(known)} for this form; got {dtype!r}"
        raise RopeError(msg)
    if name not in _NARROW:
        return backend.asarray(host.astype(name, copy=False), device)
    # Libraries go to 16 bits by way of float32, and would round twice.
    return backend.xp.astype(backend.asarray(_to_odd(host), device), dtype)


def _to_odd(exact: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to float32 so that rounding further is exact: the last bit tells what was cut off.

    To nearest, to at most 22 bits, that is then rounded as the exact number is: Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", doi 10.1109/TC.2007.70819.
    """
    nearest = exact.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    inexact = nearest != exact
    bits = nearest.view(np.uint32) - beyond.astype(np.uint32)  # the next towards zero
    odd: NDArray[np.uint32] = bits | inexact
    return odd.view(np.float32)
