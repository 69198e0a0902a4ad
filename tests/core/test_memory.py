"""Axes that are folded into few: the same rows, found by other steps."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rope_xp._core.memory import (
    ACCESS,
    Memory,
    StridedLayout,
    alignment,
    collapse_dims,
    get_span,
    have_overlap,
    span,
)


def laid(x: np.ndarray) -> StridedLayout:
    return StridedLayout(x.shape, x.strides)


def places(shape: tuple[int, ...], *steps: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return where each row lies, in each array."""
    return {
        tuple(sum(i * n for i, n in zip(index, along, strict=True)) for along in steps)
        for index in itertools.product(*map(range, shape))
    }


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
    found = collapse_dims(axes, [laid(x)], [laid(positions)])
    spread = np.broadcast_to(positions, x.shape[:-1])
    expected = places(x.shape[:-1], x.strides[:-1], spread.strides)
    lengths = tuple(row.length for row in found)
    assert (
        places(lengths, *zip(*(row.steps for row in found), strict=True)) == expected or not found
    )
    assert np.prod(lengths) == np.prod(x.shape[:-1])
    assert len(found) <= sum(n > 1 for n in x.shape[:-1])


def test_what_lies_in_a_row_is_one_axis() -> None:
    x = np.zeros((3, 4, 5, 2, 8), np.float32)  # two of batch, tokens, heads, head_dim
    positions = np.zeros((3, 4, 5), np.int64)
    (row,) = collapse_dims((0, 1, 2), [laid(x)], [laid(positions)])
    assert row == (60, (64, 8))
    shared = np.zeros(5, np.int64)
    assert [r.length for r in collapse_dims((0, 1, 2), [laid(x)], [laid(shared)])] == [12, 5]
    assert [r.length for r in collapse_dims((0, 1, 2), [laid(x)], [])] == [12, 5]
    assert collapse_dims((0, 1, 2), [laid(x[:1, :1, :1])], []) == []


def test_counted_positions_go_on_by_one_from_token_to_token() -> None:
    x = np.zeros((3, 4, 5, 8), np.float32)
    assert [r.steps[-1] for r in collapse_dims((0, 1, 2), [laid(x)], [])] == [0, 1]
    assert [r.steps[-1] for r in collapse_dims((2, 0, 1), [laid(x)], [])] == [0, 0, 1]


@given(st.lists(st.integers(-1000, 1000), max_size=5))
def test_alignment(numbers: list[int]) -> None:
    found = alignment(*numbers)
    assert found in {1, 2, 4, 8, 16}
    assert all(n % found == 0 for n in numbers)
    assert found == ACCESS or any(n % (2 * found) for n in numbers)


def test_span() -> None:
    assert span((3, 1, 4), (10, 1000, -2)) == 26


@given(st.data())
def test_overlap_is_that_of_numpy(data: st.DataObject) -> None:
    memory = np.zeros(64, np.int16)

    def view() -> np.ndarray:
        start, stop = sorted(data.draw(st.tuples(st.integers(0, 63), st.integers(0, 63))))
        return memory[start : stop + 1 : data.draw(st.integers(1, 5))][
            :: data.draw(st.sampled_from([1, -1]))
        ]

    def of(x: np.ndarray) -> Memory:
        return Memory(x.ctypes.data, x.shape, x.strides, x.itemsize, True)

    a, b = view(), view()
    first, second = get_span(of(a)), get_span(of(b))
    assert first is not None
    assert second is not None
    assert have_overlap(first, second) == np.shares_memory(a, b)
    assert get_span(None) is None
