"""How other engines lay out tables of cos and sin: recognised in arguments, built by RoPE.table."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.dtypes import NARROW
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device, Layout, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Columns = Literal["halves", "neighbours", "pairs"]

COLUMNS: dict[Columns, tuple[str, str]] = {
    "halves": ("(a, b, a, b)", ": {pairs}"),
    "neighbours": ("(a, a, b, b)", "::2"),
    "pairs": ("(a, b)", ":"),
}
"""The columns of angles a and b of two pairs, and the index of one column for each pair."""

COLUMN_FORMS: tuple[Columns, ...] = ("pairs", "halves", "neighbours")
"""By the number that :meth:`Backend.rotate_by_tables` takes."""
FORMS = ("vllm", "huggingface", "megatron", "complex", "onnx")
_REAL = ("float32", "float64", *NARROW)
_COMPLEX = ("complex64", "complex128")


def one_per_pair(table: Array, columns: Columns) -> Array:
    if columns == "pairs":
        return table
    return table[..., : table.shape[-1] // 2] if columns == "halves" else table[..., ::2]


def doubled(xp: Namespace, table: Array, columns: Columns) -> Array:
    """Return a table of one column for each pair with the columns of another engine."""
    if columns == "pairs":
        return table
    if columns == "halves":
        return xp.concat((table, table), axis=-1)
    return xp.reshape(xp.stack((table, table), axis=-1), (*table.shape[:-1], 2 * table.shape[-1]))


def _index_one_column(width: int, *forms: Columns) -> str:
    return " or ".join(
        f"cos[..., {COLUMNS[form][1].format(pairs=width // 2)}] of {COLUMNS[form][0]}"
        for form in forms
    )


def hint_one_column(width: int) -> str:
    """Return the hint for tables whose shape suggests that they hold each angle twice."""
    return (
        ". If the tables hold each angle twice, pass one column per pair: "
        f"{_index_one_column(width, 'neighbours', 'halves')}"
    )


def check_one_per_pair(cos: Any, sin: Any) -> None:
    """Check that tables in host memory do not hold each angle twice."""
    # They would silently rotate twice as many components as meant. Tables whose columns are all
    # equal, such as those of position 0, are the same both ways. Tables on a device are not read.
    host_cos = find.require_backend(cos, "cos").host_view(cos)
    host_sin = find.require_backend(sin, "sin").host_view(sin)
    if host_cos is None or host_sin is None or host_cos.shape != host_sin.shape:
        return
    if host_cos.ndim < 2 or not host_cos.size or host_cos.shape[-1] % 2:
        return
    last = host_cos[(-1,) * (host_cos.ndim - 1)]
    if last[0] not in (last[1], last[len(last) // 2]):  # three numbers rule out most tables
        return
    if all((table == table[..., :1]).all() for table in (host_cos, host_sin)):
        return
    columns = read_columns(np, host_cos, host_sin)
    if columns is not None:
        width = cos.shape[-1]
        raise RopeError(
            f"cos and sin, of shape {tuple(cos.shape)}, hold each angle twice; pass one column "
            f"per pair, {_index_one_column(width, columns)}, and sin likewise. If they really have "
            f"a column for each of {width} pairs, use "
            f"RoPE(rotary_dim={2 * width}, ...).with_tables(cos, sin)"
        )


def read_columns(xp: Namespace, cos: Array, sin: Array) -> Columns | None:
    """Return which columns of both tables are equal, None where neither halves nor neighbours."""
    half, odd = divmod(cos.shape[-1], 2)
    columns = {
        "halves": (slice(None, half), slice(half, None)),
        "neighbours": (slice(None, None, 2), slice(1, None, 2)),
    }
    for form, (first, second) in columns.items():
        if not odd and all(bool(xp.all(t[..., first] == t[..., second])) for t in (cos, sin)):
            return form  # type: ignore[return-value]  # one of two
    return None


def arrange(
    form: str, layout: Layout, cos: NDArray[np.float64], sin: NDArray[np.float64]
) -> tuple[NDArray[Any], ...]:
    """Return the one or two tables of a form, in float64, from cos and sin (positions, r/2)."""
    if form == "vllm":
        both = cos.base if cos.base is sin.base else None  # side by side, as they are looked up
        if both is not None and both.shape == (*cos.shape[:-1], 2 * cos.shape[-1]):
            return (both,)
        return (np.concatenate([cos, sin], axis=-1),)
    if form == "complex":
        return (cos + 1j * sin,)
    if form == "onnx":
        return cos, sin
    columns: Columns = "neighbours" if layout == "interleaved" else "halves"
    if form == "huggingface":
        return doubled(np, cos, columns), doubled(np, sin, columns)
    # Less whole turns, which would take all digits of a float32 and change neither cos nor sin.
    return (doubled(np, np.arctan2(sin, cos), columns)[:, None, None, :],)


def empty(backend: Backend, block: NDArray[Any], length: int, dtype: Any) -> NDArray[Any]:
    """Return host memory for so many rows like those of a block."""
    name = _name_dtype(backend, block, dtype)
    return np.empty((length, *block.shape[1:]), np.float32 if name in NARROW else name)


def round_into(host: NDArray[Any], exact: NDArray[Any], backend: Backend, dtype: Any) -> None:
    """Write rows of float64 or complex128 so that :func:`finish` rounds them once at most."""
    # Libraries go to 16 bits by way of float32, and would round twice.
    is_narrow = dtype is not None and _name_dtype(backend, exact, dtype) in NARROW
    host[...] = _round_to_odd(exact) if is_narrow else exact


def finish(backend: Backend, host: NDArray[Any], device: Device | None, dtype: Any) -> Array:
    """Return rounded rows as an array of a library."""
    table = backend.asarray(host, device)
    if dtype is None or _name_dtype(backend, host, dtype) not in NARROW:
        return table
    return backend.xp.astype(table, dtype)


def _name_dtype(backend: Backend, host: NDArray[Any], dtype: Any) -> str:
    dtypes, default = (_COMPLEX, "complex64") if host.dtype.kind == "c" else (_REAL, "float32")
    if dtype is None:
        return default
    name = backend.dtype_name(backend.xp.empty((0,), dtype=dtype))
    if name not in dtypes:
        raise RopeError(f"dtype must be one of {', '.join(dtypes)} for this form; got {dtype!r}")
    return name


def _round_to_odd(exact: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to float32 so that rounding further is exact: the last bit marks an inexact number."""
    # To nearest, to at most 22 bits, that is then rounded as the exact number is: Boldo and
    # Melquiond, "Emulation of a FMA and correctly rounded sums", doi 10.1109/TC.2007.70819.
    nearest = exact.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    inexact = nearest != exact
    bits = nearest.view(np.uint32) - beyond.astype(np.uint32)  # the next towards zero
    odd: NDArray[np.uint32] = bits | inexact
    return odd.view(np.float32)
