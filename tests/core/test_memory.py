"""Axes that are folded into few: the same rows, found by other steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rope_xp._core.memory import (
    Memory,
    StridedLayout,
    collapse_dims,
    get_span,
    have_overlap,
)


def get_layout(x: np.ndarray) -> StridedLayout:
    return StridedLayout(x.shape, x.strides)


def locate_rows(shape: tuple[int, ...], *strides: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return where each row lies, in each array."""
    return {tuple(int(np.dot(index, s)) for s in strides) for index in np.ndindex(*shape)}


@st.composite
def arrays(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Return an array (batch..., tokens, head_dim) in any order, and positions that broadcast."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    whole = np.zeros([2 * shape[i] for i in order] + [2])
    x = whole[tuple(slice(0, 2 * shape[i], draw(st.sampled_from([1, 2]))) for i in order)]
    x = np.moveaxis(x, range(len(shape)), order)
    x = x[tuple(slice(0, n) for n in shape)]
    own = draw(st.integers(1, len(shape)))
    lengths = [n if draw(st.booleans()) else 1 for n in shape[-own:]]
    return x, np.zeros(lengths, np.int64)


@given(arrays())
def test_the_same_rows_by_fewer_axes(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, positions = pair
    axes = tuple(range(x.ndim - 1))
    rows = collapse_dims(axes, [get_layout(x)], [get_layout(positions)])
    shape, lengths = x.shape[:-1], tuple(row.length for row in rows)
    if rows:
        spread = np.broadcast_to(positions, shape)
        steps = zip(*(row.steps for row in rows), strict=True)
        assert locate_rows(lengths, *steps) == locate_rows(shape, x.strides[:-1], spread.strides)
    assert np.prod(lengths) == np.prod(shape)
    assert len(rows) <= sum(n > 1 for n in shape)


def test_contiguous_rows_are_one_axis() -> None:
    """Positions that are counted go on by one from token to token."""
    x = np.zeros((3, 4, 5, 2, 8), np.float32)  # two of batch, tokens, heads, head_dim
    layout = get_layout(x)
    own, shared = (get_layout(np.zeros(shape, np.int64)) for shape in ((3, 4, 5), (5,)))
    assert collapse_dims((0, 1, 2), [layout], [own]) == [(60, (64, 8))]
    for positions in ([shared], []):
        assert [r.length for r in collapse_dims((0, 1, 2), [layout], positions)] == [12, 5]
    assert collapse_dims((0, 1, 2), [get_layout(x[:1, :1, :1])], []) == []
    for axes, steps in (((0, 1, 2), [0, 1]), ((2, 0, 1), [0, 0, 1])):
        assert [r.steps[-1] for r in collapse_dims(axes, [get_layout(x[..., 0, :])], [])] == steps


@given(st.data())
def test_overlap_is_that_of_numpy(data: st.DataObject) -> None:
    memory = np.zeros(64, np.int16)

    def draw_view() -> np.ndarray:
        start, stop = sorted(data.draw(st.tuples(st.integers(0, 63), st.integers(0, 63))))
        view = memory[start : stop + 1 : data.draw(st.integers(1, 5))]
        return view[:: data.draw(st.sampled_from([1, -1]))]

    views = draw_view(), draw_view()
    memories = [Memory(x.ctypes.data, x.shape, x.strides, x.itemsize, True) for x in views]
    spans = [get_span(m) for m in memories]
    assert None not in spans
    assert have_overlap(*spans) == np.shares_memory(*views)
    assert get_span(None) is None
