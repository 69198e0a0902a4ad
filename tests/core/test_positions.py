"""Builders of positions, against their definitions."""

import importlib
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.targets import rows

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
    assert packed.dtype == offsets.dtype == ends.dtype
    assert np.asarray(packed).tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert np.asarray(offsets).tolist() == [[3, 4], [3, 4], [7, 8]]
    halves = positions.grid(2, 2, step=0.5, xp=xp)
    assert "float32" in str(halves.dtype) or xp is np
    for result in (
        packed,
        offsets,
        halves,
        positions.video(2, 1, 2, step=0.5, xp=xp),
        positions.text(2, 3, xp=xp),
        positions.mrope([2, (1, 2, 2)], xp=xp),
        positions.zigzag(8, 2, xp=xp),
    ):
        assert type(result) is type(ends)


MASK = np.array([[0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]])


COMPILED = ("numpy", "array-api-strict", "torch", "torch-compile", "jax", "jax-jit", "mlx")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("backend", rows((*COMPILED, "dask")))
def test_from_mask_equals_positions_of_generate(backend, dtype):
    torch, generation = map(pytest.importorskip, ("torch", "transformers.generation"))
    ids, kwargs = torch.tensor(MASK), {"attention_mask": torch.tensor(MASK)}
    prepare = generation.GenerationMixin._prepare_position_ids_for_generation
    expected = prepare(None, ids, kwargs).numpy()
    if dtype == "int64" and backend.module == "jax":
        pytest.skip("without x64 it has no int64")
    result = backend.back(backend.run(positions.from_mask, backend.make(MASK.astype(dtype))))
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == ("int64" if dtype == "int64" else "int32")
    assert positions.from_mask(MASK[0].tolist()).tolist() == expected[0].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("backend", rows(COMPILED))
def test_from_segments_counts_each_numbered_sequence_from_0(backend, dtype):
    if dtype == "int64" and backend.module == "jax":
        pytest.skip("without x64 it has no int64")
    segments = backend.make(np.array([[1, 1, 2, 2, 2, 0], [0, 5, 5, 1, 0, 0]]).astype(dtype))
    result = backend.back(backend.run(positions.from_segments, segments))
    assert result.tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 0, 0, 0]]
    assert result.dtype == ("int64" if dtype == "int64" else "int32")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=6))
def test_from_segments_of_any_row_equals_packed(runs):
    """Runs of so many tokens; neighbours have other numbers, but for padding."""
    numbers = [i + 1 if number else 0 for i, (_, number) in enumerate(runs)]
    lengths = [length for length, _ in runs]
    row = np.repeat(np.array(numbers, np.int64), lengths)
    alone = positions.packed(np.cumsum([0, *lengths])) * (row > 0)
    np.testing.assert_array_equal(positions.from_segments(row), alone)


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


def test_video_at_a_frame_rate_equals_cosmos():
    # Cosmos: the frame in units of 1/24 s of a video of 16 frames a second, here from its second.
    cells = [*product([i / 16 * 24 for i in range(1, 6)], [0, 1], [0, 1, 2])]
    result = positions.video(5, 2, 3, start=(24 / 16, 0, 0), step=(24 / 16, 1, 1))
    np.testing.assert_allclose(result.T, cells, rtol=1e-15)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 3), (1, 1)])
def test_video_and_grid_counted_from_the_middle_equal_qwen_image(height, width):
    # Qwen-Image: negative rows first, one more than of the others where their number is odd.
    rows, columns = ([*range(-(n - n // 2), 0), *range(n // 2)] for n in (height, width))
    result = positions.video(1, height, width, start=(2, 0, 0), centre=True)
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result.T, [*product([2], rows, columns)])
    np.testing.assert_array_equal(positions.grid(height, width, centre=True), result[1:])


def test_text_beside_an_image_equals_z_image_and_qwen_image():
    # Z-Image: a caption counts frames from 1, the image lies in the frame behind it.
    caption = positions.text(3, 3, start=(1, 0, 0), along=(0,))
    image = positions.video(1, 2, 2, start=(4, 0, 0))
    both = np.concatenate([caption, image], axis=1)
    assert both.tolist() == [[1, 2, 3, 4, 4, 4, 4], [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 1]]
    # Qwen-Image: all components of the text go on.
    assert positions.text(2, 3, start=5).tolist() == [[5, 6]] * 3
    assert positions.text(4, 2, along=()).tolist() == [[0] * 4] * 2
    assert positions.text(0, 2).shape == (2, 0)
