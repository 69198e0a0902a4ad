"""Builders of positions, against their definitions."""

import importlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.targets import rows

import rope_xp
from rope_xp import RopeError, positions

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(lengths, st.integers(1, 4))
def test_packed_counts_from_0_and_offsets_count_on(counts, new):
    ends = np.cumsum([0, *counts])
    expected = [i for n in counts for i in range(n)]
    assert positions.packed(ends.tolist()).tolist() == expected
    padded = positions.packed(ends, total=int(ends[-1]) + 3).tolist()
    assert padded == [*expected, 0, 1, 2]
    assert positions.offsets(counts, new).tolist() == [[n + i for i in range(new)] for n in counts]


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))
def test_builders_return_arrays_of_the_library_that_is_asked_for(backend):
    xp = importlib.import_module({"jax": "jax.numpy"}.get(backend.module, backend.module))
    ends = xp.asarray(np.array([0, 3, 3, 7], np.int32))
    packed, offsets = positions.packed(ends), positions.offsets(ends[1:], 2)
    for result in (packed, offsets):
        assert type(result) is type(ends)
        assert result.dtype == ends.dtype
    assert np.asarray(packed).tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert np.asarray(offsets).tolist() == [[3, 4], [3, 4], [7, 8]]
    for result in (
        positions.grid(2, 3, xp=xp),
        positions.video(2, 1, 2, step=0.5, xp=xp),
        positions.text(2, 3, xp=xp),
        positions.mrope([2, (1, 2, 2)], xp=xp),
        positions.zigzag(8, 2, xp=xp),
    ):
        assert type(result) is type(ends)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 4))
def test_zigzag_cuts_each_packed_sequence_as_a_lone_one(chunks, shards):
    """The split of Transformer Engine's "thd"."""
    ends = np.cumsum([0, *(2 * shards * n for n in chunks)])
    result = positions.zigzag(cu_seqlens=ends.tolist(), shards=shards)
    for device in range(shards):
        expected: list[int] = []
        for start, end in pairwise(ends.tolist()):
            parts = np.split(np.arange(start, end), 2 * shards)
            expected += [*parts[device], *parts[2 * shards - 1 - device]]
        assert result[device].tolist() == expected
    one = positions.zigzag(8 * shards, shards)
    np.testing.assert_array_equal(positions.zigzag(cu_seqlens=[0, 8 * shards], shards=shards), one)


@given(st.integers(1, 6), st.integers(1, 5))
def test_zigzag_shares_the_work_of_a_causal_mask(shards, chunk):
    tokens = 2 * shards * chunk
    result = positions.zigzag(tokens, shards)
    assert result.shape == (shards, 2 * chunk)
    assert sorted(result.ravel().tolist()) == list(range(tokens))
    work = (result + 1).sum(axis=1)  # a token attends to itself and all before
    assert (work == work[0]).all()


@pytest.mark.parametrize(
    "backend", rows(("numpy", "array-api-strict", "torch", "torch-compile", "jax-jit"))
)
def test_builders_under_compilers_take_traced_lengths(backend):
    ends = backend.make(np.array([0, 4, 4, 12], np.int32))
    tokens = backend.run(lambda ends: positions.zigzag(12, 2, cu_seqlens=ends), ends)
    assert backend.back(tokens).tolist() == [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    packed = backend.run(lambda ends: positions.packed(ends, total=13), ends)
    assert backend.back(packed).tolist() == [*range(4), *range(8), 0]


def test_packed_under_jit_without_a_total_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(RopeError, match="pass the number of tokens as total="):
        jax.jit(positions.packed)(jax.numpy.array([0, 3]))


def test_packed_sequences_are_rotated_as_if_alone(rng):
    x, ends = rng.standard_normal((9, 2, 8)), [0, 4, 5, 9]
    together = rope_xp.RoPE().rotate(x, positions.packed(ends))
    for start, end in pairwise(ends):
        np.testing.assert_array_equal(together[start:end], rope_xp.RoPE().rotate(x[start:end]))


def test_a_video_is_grids_in_a_row():
    grid = [[i for i in range(3) for _ in range(4)], [*range(4)] * 3]
    assert positions.grid(3, 4).tolist() == grid
    video = positions.video(2, 3, 4).reshape(3, 2, 12)
    for frame in range(2):
        assert (video[0, frame] == frame).all()
        assert video[1:, frame].tolist() == grid


def test_mrope_goes_on_from_a_start_and_by_seconds():
    whole = positions.mrope([3, (1, 2, 2), 4])
    np.testing.assert_array_equal(positions.mrope([4], start=5), whole[:, 7:])
    assert positions.mrope([(3, 1, 1)], interval=2.5)[0].tolist() == [0, 2, 5]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int64])
def test_builders_take_integers_of_any_width(dtype):
    ends = np.array([0, 100, 127], dtype)
    packed = positions.packed(ends, total=np.int64(300))
    assert packed.tolist() == [*range(100), *range(27), *range(173)]
    assert positions.offsets(ends, 300)[2, -1] == 426
    assert positions.grid(dtype(1), np.int32(2)).tolist() == [[0, 0], [0, 1]]
    assert positions.mrope([dtype(2), np.array([1, 1, 2], dtype)]).shape == (3, 4)


WRONG: list[tuple[str, Any]] = [
    ("cu_seqlens must start with 0", lambda: positions.packed([1, 3])),
    ("not decrease", lambda: positions.packed([0, 3, 2])),
    ("cu_seqlens must be a row of integers; got fl", lambda: positions.packed([0.0, 3.0])),
    ("cu_seqlens must be a row of integers", lambda: positions.packed([[0, 3]])),
    ("total must not be negative; got -1", lambda: positions.packed([0, 3], total=-1)),
    ("total = 2 is less than cu_seqlens", lambda: positions.packed([0, 3], total=2)),
    ("total must be an integer; got 7.5", lambda: positions.packed([0, 3], total=7.5)),
    ("not decrease", lambda: positions.packed(np.array([0, 3, 2], np.uint64))),
    ("cu_seqlens is empty", lambda: positions.packed(np.array([], np.int64))),
    ("start must be an integer", lambda: positions.mrope([3], start=1.5)),
    (r"spans\[0\] must be a number of tokens or", lambda: positions.mrope([(1, 2)])),
    ("needs xp, the library", lambda: positions.grid(2, 3, device="cuda")),
    ("lengths must be a row of integers", lambda: positions.offsets([[3]])),
    ("new_tokens must be positive", lambda: positions.offsets([3], 0)),
    ("frames must be positive", lambda: positions.video(-1, 3, 3)),
    (r"spans\[1\] must be positive", lambda: positions.mrope([3, 0])),
    ("width must be positive", lambda: positions.mrope([(1, 3, 0)])),
    ("interval must be positive", lambda: positions.mrope([3], interval=0.0)),
    (r"tokens = 9 must be a multiple of 2 \* shards = 4", lambda: positions.zigzag(9, 2)),
    ("shards must be positive", lambda: positions.zigzag(8, 0)),
    ("zigzag needs tokens", lambda: positions.zigzag(shards=2)),
    (r"of 2 \* shards = 4 tokens", lambda: positions.zigzag(shards=2, cu_seqlens=[0, 6, 8])),
    ("must be cu_seqlens", lambda: positions.zigzag(8, 2, cu_seqlens=[0, 4])),
    ("must start with 0", lambda: positions.zigzag(shards=2, cu_seqlens=[4, 8])),
]


@pytest.mark.parametrize(("message", "make"), WRONG, ids=[message for message, _ in WRONG])
def test_impossible_arrangements_are_refused(message, make):
    with pytest.raises(RopeError, match=message):
        make()
