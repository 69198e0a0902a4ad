"""How tables are laid out in columns: one for each pair, or each twice, as other engines do."""

from typing import Any, Literal

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Namespace
from rope_xp._dispatch import find

Columns = Literal["halves", "neighbours", "pairs"]

COLUMNS: dict[Columns, tuple[str, str]] = {
    "halves": ("(a, b, a, b)", ": {pairs}"),
    "neighbours": ("(a, a, b, b)", "::2"),
    "pairs": ("(a, b)", ":"),
}
"""What angles a and b of two pairs look like, and the index of one column for each pair."""


def one_per_pair(table: Array, columns: Columns) -> Array:
    """Return one column for each pair."""
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


def _one_column(pairs: int, *forms: Columns) -> str:
    """Return how to take one column for each of some pairs."""
    ways = [(COLUMNS[form][1].format(pairs=pairs), COLUMNS[form][0]) for form in forms]
    return " or ".join(f"cos[..., {index}] of {shown}" for index, shown in ways)


def hint(columns: int) -> str:
    """Return what tables that hold each angle twice need, where their shape alone is known."""
    return (
        "Tables that repeat each angle for both of a pair need one column a pair: "
        f"{_one_column(columns // 2, 'neighbours', 'halves')}"
    )


def check_one_per_pair(cos: Any, sin: Any) -> None:
    """Check that tables in host memory do not hold each angle twice.

    They would rotate twice as many components as are meant, without a word. Those of equal columns
    alone, such as of position 0, are the same both ways. Others are not read, but by their shape.
    """
    host_cos = find.require_backend(cos, "cos").host_view(cos)
    host_sin = find.require_backend(sin, "sin").host_view(sin)
    if host_cos is None or host_sin is None or host_cos.shape != host_sin.shape:
        return
    known = _twice(host_cos, host_sin)
    if known is not None:
        columns = cos.shape[-1]
        msg = (
            f"cos and sin, of shape {tuple(cos.shape)}, hold each angle twice; give one column "
            f"for each pair, {_one_column(columns // 2, known)}, and sin likewise. If they do have "
            f"a column for each of {columns} pairs, make that known: "
            f"RoPE(rotary_dim={2 * columns}, ...).with_tables(cos, sin)"
        )
        raise RopeError(msg)


def _twice(cos: np.ndarray, sin: np.ndarray) -> Columns | None:
    """Return how tables hold each angle twice, None where they do not."""
    if cos.ndim < 2 or not cos.size or cos.shape[-1] % 2:
        return None
    last = cos[(-1,) * (cos.ndim - 1)]
    if last[0] not in (last[1], last[len(last) // 2]):  # which tells most tables, by three numbers
        return None
    if all((table == table[..., :1]).all() for table in (cos, sin)):
        return None
    return read_columns(np, cos, sin)


def read_columns(xp: Namespace, cos: Array, sin: Array) -> Columns | None:
    """Return which columns of both tables are equal, None where neither halves nor neighbours."""
    width = cos.shape[-1]
    ways: dict[Columns, tuple[slice, slice]] = {
        "halves": (slice(width // 2), slice(width // 2, None)),
        "neighbours": (slice(None, None, 2), slice(1, None, 2)),
    }
    for way, (one, other) in ways.items():
        if width % 2 == 0 and all(bool(xp.all(t[..., one] == t[..., other])) for t in (cos, sin)):
            return way
    return None
