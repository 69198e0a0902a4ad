"""Tables that hold each angle twice: refused by name, with advice that gives right numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.targets import Target, numpy_dtype, rows

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._arguments.table_forms import COLUMNS, doubled, one_per_pair, read_columns
from rope_xp.scaling import Axial

N, D = 6, 16
LAYOUTS = ("interleaved", "half", "interleaved_to_half")
DOUBLED = ("halves", "neighbours")


def by_advice(rotate: Callable[[Any, Any], Any], cos: Any, sin: Any, columns: Any) -> Any:
    """Return what is rotated by tables that an error message says how to cut."""
    with pytest.raises(RopeError) as caught:
        rotate(cos, sin)
    advised = re.findall(r"cos\[\.\.\., ([^\]]+)\] of (\([^)]+\))", str(caught.value))
    index = {shown: index for index, shown in advised}[COLUMNS[columns][0]]
    return rotate(*(eval(f"t[..., {index}]", {"t": t}) for t in (cos, sin)))


@pytest.mark.parametrize("backend", rows(("numpy", "torch", "array-api-strict", "jax")))
@pytest.mark.parametrize("columns", DOUBLED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_advice_for_whole_heads_is_right(backend: Target, columns: Any, layout: Any) -> None:
    rope, rng = RoPE(layout=layout), np.random.default_rng(0)
    x = backend.make(rng.standard_normal((N, 2, D)).astype(np.float32))
    at = np.arange(N) + 3
    tables = [doubled(np, t, columns) for t in rope.cos_sin(at, D)]
    cos, sin = (backend.make(t) for t in tables)
    expected = backend.back(rope.rotate(x, at))
    ways = (
        lambda c, s: rope_xp.apply_tables(x, c, s, layout=layout),
        lambda c, s: rope.with_tables(c, s).rotate(x),
        lambda c, s: RoPE(layout=layout, rotary_dim=D).with_tables(c, s).rotate(x),
        lambda c, s: rope.with_tables(c, s).apply(x, x)[1],
    )
    for way in ways:
        found = backend.back(by_advice(way, cos, sin, columns))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
@pytest.mark.parametrize("columns", DOUBLED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("r", [4, 8, 12])
def test_those_of_a_part_of_a_head_are_told_by_their_numbers(
    backend: Target, columns: Any, dtype: str, r: int
) -> None:
    """Their shape alone would do for twice as many components."""
    rope, rng = RoPE(layout="half", rotary_dim=r), np.random.default_rng(0)
    x = backend.make(rng.standard_normal((N, 2, D)).astype(np.float32))
    tables = [doubled(np, t, columns) for t in rope.cos_sin(np.arange(N), D)]
    cos, sin = (backend.make(t.astype(numpy_dtype(dtype))) for t in tables)
    turn = functools.partial(rope_xp.apply_tables, x, layout="half")
    found = by_advice(turn, cos, sin, columns)
    near = 2.0**-7 * 5 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(backend.back(found), backend.back(rope.rotate(x)), rtol=0, atol=near)
    with pytest.raises(RopeError, match=r"hold each angle twice; give .* of \(a, "):
        RoPE(layout="half").with_tables(cos, sin)


def test_numpy_tables_for_tensors_are_told_too() -> None:
    torch = pytest.importorskip("torch")
    cos, sin = RoPE(layout="half", rotary_dim=8).table(N, D, form="huggingface")
    with pytest.raises(RopeError, match="hold each angle twice"):
        rope_xp.apply_tables(torch.ones(N, 2, D), cos, sin, layout="half")


def test_what_only_seems_to_be_twice() -> None:
    x = np.ones((N, 2, D), np.float32)
    for at in (np.zeros(N), np.arange(N)):  # of position 0, all columns are equal
        tables = RoPE(rotary_dim=8).cos_sin(at, D)
        rope_xp.apply_tables(x, *tables)
        RoPE(rotary_dim=8).with_tables(*tables).rotate(x)
    # Rows that equal their columns: angles of a rope are right, whatever they look like.
    cells = RoPE(scaling=Axial(2), position_axes=(0,) * 4 + (1,) * 4)
    at = np.stack([np.arange(N)] * 2)
    angles = cells.at(at, like=x)
    np.testing.assert_array_equal(angles.rotate(x), cells.rotate(x, at))
    # And those of a caller who says how many components they are for.
    with pytest.raises(RopeError, match=r"RoPE\(rotary_dim=16, ...\).with_tables"):
        rope_xp.apply_tables(x, angles.cos, angles.sin)
    said = RoPE(rotary_dim=16).with_tables(angles.cos, angles.sin)
    np.testing.assert_array_equal(said.rotate(x), cells.rotate(x, at))


def test_nothing_is_read_while_a_compiler_traces() -> None:
    torch = pytest.importorskip("torch")
    cos, sin = map(torch.from_numpy, RoPE(rotary_dim=8).table(N, D, form="huggingface"))
    x = torch.ones(N, 2, D)
    torch._dynamo.reset()
    turn = torch.compile(rope_xp.apply_tables, fullgraph=True, backend="eager")
    assert turn(x, cos, sin).shape == x.shape
    batched = torch.func.vmap(rope_xp.apply_tables, (0, None, None))
    assert batched(x[None], cos, sin).shape == (1, *x.shape)


@pytest.mark.parametrize("columns", COLUMNS)
def test_there_and_back(columns: Any) -> None:
    table = np.random.default_rng(0).standard_normal((2, N, D))
    wide = doubled(np, table, columns)
    np.testing.assert_array_equal(one_per_pair(wide, columns), table)
    if columns != "pairs":
        assert wide.shape[-1] == 2 * D
        assert read_columns(np, wide, wide) == columns
    assert read_columns(np, table, table) is None
    assert read_columns(np, table[..., :7], table[..., :7]) is None
