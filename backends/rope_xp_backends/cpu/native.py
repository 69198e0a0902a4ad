"""The native module, which rotates arrays in CPU memory, or the reason why it is missing."""

import logging
from pathlib import Path
from typing import Any, TypeAlias

from rope_xp._core.call import Call, RotationSpec, get_interleaved
from rope_xp._core.errors import RopeError
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables, SmallTables
from rope_xp._dispatch.kernels import decline_norm

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""The dtypes that kernels read, by their numbers."""
MAX_AXES = 16
Arrays: TypeAlias = tuple[Any, ...]
Description: TypeAlias = tuple[int, int, tuple[int, ...], tuple[int, ...], bool]
"""The address of an array, the number of its dtype (beyond DTYPES for any other), its shape, its
strides in bytes, and whether it is writeable: what the native module asks of arrays whose fields it
cannot read."""


def _find_reason(error: ImportError) -> str:
    """Return why there is no native module, and what to do."""
    note = Path(__file__).with_name("_native_missing.txt")
    reason = note.read_text("utf-8").strip() if note.is_file() else str(error)
    return (
        f"the native module is not built ({reason}); install rope-xp where a C++ compiler is, "
        "or the package ziglang: pip install --no-binary rope-xp rope-xp"
    )


LOG = logging.getLogger("rope_xp")
module: Any = None
"""The native module; None where it is missing."""
MISSING: str | None = None
try:
    from . import _native as module  # type: ignore[attr-defined,no-redef]  # compiled
except ImportError as error:
    MISSING = _find_reason(error)
    LOG.warning(
        "numpy and torch have no kernels on CPUs, and calls take several times as long:\n%s",
        MISSING,
    )


def decline_reason(call: Call) -> str | None:
    """Return why kernels do not take a call."""
    if MISSING is None and len(call.spec.axes.names) > MAX_AXES:
        return f"its kernels take arrays of at most {MAX_AXES} axes"
    return MISSING or decline_norm(call)


def describe_spec(spec: RotationSpec, columns: int) -> tuple[Any, ...]:
    """Return a rotation as the native function takes it.

    ``columns`` is the axis of components of positions: 0 the first, 1 the last, -1 none. Of cos and
    sin it is the step from column to column that is read.
    """
    axes, norm = spec.axes, spec.norm
    return (
        axes.batch_tokens,
        -1 if axes.heads is None else axes.heads,
        *get_interleaved(spec),
        bool(spec.inverse),
        spec.rotary_offset,
        int(spec.rotary_dim) // 2,  # torch.jit.trace has tensors
        columns,
        None if norm is None else norm.eps,
        0.0 if norm is None else norm.weight_offset,
        norm is not None and not norm.over_slice,
    )


def read_tables(tables: DigitTables | SmallTables) -> Any:
    """Return the handle by which the native function knows tables, which it keeps alive."""
    handle = module.read_tables(tuple(tables), getattr(tables, "factor", None))
    object.__setattr__(tables, "handle", handle)  # an equal one whoever sets it
    return handle


def rotate(
    spec: tuple[Any, ...],
    arrays: Arrays,
    results: Arrays,
    weights: Arrays,
    angles: Arrays,
    tables: DigitTables | None,
) -> None:
    """Rotate arrays of one dtype into results, which overlap nothing else.

    ``spec`` is what :func:`describe_spec` returns. ``angles`` are positions and their fractions, or
    without tables cos and sin. An array is in place if it is its own result. Raise PathUnavailable
    before anything is written if an array, such as a functional tensor, has no memory.
    """
    handle = tables and (tables.handle or read_tables(tables))
    try:
        done: bool = module.rotate(arrays, results, weights, angles, handle, spec, False)
    except RopeError:  # of the number of threads
        raise
    except ValueError as error:  # a class that lies about its shape, or a call of the operator
        raise RopeError(f"the arrays of a rotation do not fit each other: {error}") from error
    if not done:
        raise PathUnavailable("an array has no memory")
