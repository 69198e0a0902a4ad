"""Builders of positions: against what they are defined as, and against transformers."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.targets import Target, rows

import rope_xp
from rope_xp import RopeError, positions

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(lengths)
def test_packed_counts_each_sequence_from_0(counts: list[int]) -> None:
    ends = np.cumsum([0, *counts])
    expected = [i for n in counts for i in range(n)]
    assert positions.packed(ends.tolist()).tolist() == expected
    padded = positions.packed(ends, total=int(ends[-1]) + 3).tolist()
    assert padded == [*expected, 0, 1, 2]


@given(lengths, st.integers(1, 4))
def test_offsets_count_on(counts: list[int], new: int) -> None:
    found = positions.offsets(counts, new)
    assert found.tolist() == [[n + i for i in range(new)] for n in counts]


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))
def test_arrays_of_any_library(backend: Target) -> None:
    xp = importlib.import_module({"jax": "jax.numpy"}.get(backend.module, backend.module))
    ends = xp.asarray(np.array([0, 3, 3, 7], np.int32))
    packed, offsets = positions.packed(ends), positions.offsets(ends[1:], 2)
    for found in (packed, offsets):
        assert type(found) is type(ends)
        assert found.dtype == ends.dtype
    assert np.asarray(packed).tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert np.asarray(offsets).tolist() == [[3, 4], [3, 4], [7, 8]]
    for found in (
        positions.grid(2, 3, xp=xp),
        positions.video(2, 1, 2, xp=xp),
        positions.video(2, 1, 2, step=0.5, xp=xp),
        positions.text(2, 3, xp=xp),
        positions.mrope([2, (1, 2, 2)], xp=xp),
        positions.zigzag(8, 2, xp=xp),
    ):
        assert type(found) is type(ends)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 4))
def test_zigzag_of_packed_sequences(chunks: list[int], shards: int) -> None:
    """Each sequence is cut as a lone one is: the split of Transformer Engine's "thd"."""
    ends = np.cumsum([0, *(2 * shards * n for n in chunks)])
    held = positions.zigzag(cu_seqlens=ends.tolist(), shards=shards)
    for device in range(shards):
        own: list[int] = []
        for start, end in pairwise(ends.tolist()):
            parts = np.split(np.arange(start, end), 2 * shards)
            own += [*parts[device], *parts[2 * shards - 1 - device]]
        assert held[device].tolist() == own
    one = positions.zigzag(8 * shards, shards)
    np.testing.assert_array_equal(positions.zigzag(cu_seqlens=[0, 8 * shards], shards=shards), one)


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax-jit")))
def test_zigzag_where_cu_seqlens_are(backend: Target) -> None:
    ends = np.array([0, 4, 4, 12], np.int32)
    found = backend.run(lambda ends: positions.zigzag(12, 2, cu_seqlens=ends), backend.make(ends))
    assert backend.back(found).tolist() == [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]


def test_packed_under_jit() -> None:
    jax = pytest.importorskip("jax")
    packed = jax.jit(lambda ends: positions.packed(ends, total=7))
    assert packed(jax.numpy.array([0, 3, 7])).tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_packed_compiled_by_torch() -> None:
    torch = pytest.importorskip("torch")
    packed = torch.compile(lambda e: positions.packed(e, total=7), fullgraph=True, backend="eager")
    assert packed(torch.tensor([0, 3, 7])).tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_packed_sequences_are_rotated_as_if_alone(rng: np.random.Generator) -> None:
    x, ends = rng.standard_normal((9, 2, 8)), [0, 4, 5, 9]
    together = rope_xp.RoPE().rotate(x, positions.packed(ends))
    for start, end in pairwise(ends):
        np.testing.assert_array_equal(together[start:end], rope_xp.RoPE().rotate(x[start:end]))


def test_a_grid_is_rows_and_columns() -> None:
    assert positions.grid(3, 4).tolist() == [
        [i for i in range(3) for _ in range(4)],
        [j for _ in range(3) for j in range(4)],
    ]


def test_a_video_is_grids_in_a_row() -> None:
    found = positions.video(2, 3, 4).reshape(3, 2, 12)
    for frame in range(2):
        assert (found[0, frame] == frame).all()
        np.testing.assert_array_equal(found[1:, frame], positions.grid(3, 4))


@given(st.integers(1, 6), st.integers(1, 5))
def test_zigzag_shares_the_work_of_a_causal_mask(shards: int, chunk: int) -> None:
    tokens = 2 * shards * chunk
    held = positions.zigzag(tokens, shards)
    assert held.shape == (shards, 2 * chunk)
    assert sorted(held.ravel().tolist()) == list(range(tokens))
    work = (held + 1).sum(axis=1)  # a token attends to itself and all before
    assert (work == work[0]).all()


SPANS: list[Any] = [
    [5],
    [(1, 2, 3)],
    [4, (1, 4, 6), 7],
    [3, (1, 2, 2), 1, (1, 6, 4), 2],
    [2, (3, 2, 4), 5],
    [(4, 2, 2), (1, 2, 2), 3],
]


@pytest.mark.parametrize("spans", SPANS, ids=str)
def test_mrope_against_qwen2_vl(spans: list[Any]) -> None:
    pytest.importorskip("transformers")
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLModel

    vision = {"depth": 1, "embed_dim": 16, "num_heads": 1, "hidden_size": 16, "mlp_ratio": 1}
    text = {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]},
    }
    model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision))
    kinds, images, videos = [], [], []
    for span in spans:
        if isinstance(span, int):
            kinds += [0] * span
            continue
        frames, height, width = span
        kind = 1 if frames == 1 else 2
        kinds += [kind] * (frames * height * width)
        # In patches before two by two of them are merged.
        (images if kind == 1 else videos).append([frames, 2 * height, 2 * width])
    found, _ = model.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([kinds]),
        torch.tensor(images) if images else None,
        torch.tensor(videos) if videos else None,
    )
    np.testing.assert_array_equal(positions.mrope(spans), found[:, 0].numpy())


def test_mrope_goes_on_from_a_start_and_by_seconds() -> None:
    whole = positions.mrope([3, (1, 2, 2), 4])
    np.testing.assert_array_equal(positions.mrope([4], start=5), whole[:, 7:])
    assert positions.mrope([(3, 1, 1)], interval=2.5)[0].tolist() == [0, 2, 5]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int64])
def test_integers_of_any_width(dtype: Any) -> None:
    ends = np.array([0, 100, 127], dtype)
    found = positions.packed(ends, total=300)
    assert found.tolist() == [*range(100), *range(27), *range(173)]
    assert positions.offsets(ends, 300)[2, -1] == 426


def test_lengths_may_be_numbers_of_numpy() -> None:
    ends = np.array([0, 3, 7])
    assert positions.packed(ends, total=ends[-1]).tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert positions.grid(np.int64(1), np.int32(2)).tolist() == [[0, 0], [0, 1]]
    assert positions.mrope([np.int64(2), np.array([1, 1, 2])]).shape == (3, 4)


@pytest.mark.parametrize(("second", "tokens_per_second"), [(2 / 3, 25), (2 / 7, 25), (2 / 2.3, 4)])
def test_mrope_of_a_video_in_seconds_against_qwen2_5_vl(
    second: float, tokens_per_second: int
) -> None:
    """Frames at 3 * (25 * 2 / 3) are at 50 in float32 and at 49 in float64."""
    pytest.importorskip("transformers")
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

    vision = {"depth": 1, "hidden_size": 16, "num_heads": 1, "intermediate_size": 16}
    vision |= {"out_hidden_size": 16, "tokens_per_second": tokens_per_second}
    text = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    text |= {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}}
    model = Qwen2_5_VLModel(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    kinds = [0] * 2 + [2] * 96
    found, _ = model.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([kinds]),
        None,
        torch.tensor([[96, 2, 2]]),
        second_per_grid_ts=torch.tensor([second]),
    )
    interval = float(np.float32(tokens_per_second) * np.float32(second))
    ours = positions.mrope([2, (96, 1, 1)], interval=interval)
    np.testing.assert_array_equal(ours, found[:, 0].numpy())


def test_packed_without_a_total_under_jit() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(RopeError, match="give the number of tokens as total="):
        jax.jit(positions.packed)(jax.numpy.array([0, 3]))


WRONG: list[tuple[str, Any]] = [
    ("cu_seqlens must start with 0", lambda: positions.packed([1, 3])),
    ("not decrease", lambda: positions.packed([0, 3, 2])),
    (
        "cu_seqlens must have one axis and integers; got float64",
        lambda: positions.packed([0.0, 3.0]),
    ),
    ("cu_seqlens must have one axis", lambda: positions.packed([[0, 3]])),
    ("total must not be negative; got -1", lambda: positions.packed([0, 3], total=-1)),
    ("total = 2 is less than cu_seqlens", lambda: positions.packed([0, 3], total=2)),
    ("total must be an integer; got 7.5", lambda: positions.packed([0, 3], total=7.5)),
    ("not decrease", lambda: positions.packed(np.array([0, 3, 2], np.uint64))),
    ("cu_seqlens is empty", lambda: positions.packed(np.array([], np.int64))),
    ("start must be an integer", lambda: positions.mrope([3], start=1.5)),
    (r"spans\[0\] must be a number of tokens or", lambda: positions.mrope([(1, 2)])),
    ("needs xp, the library", lambda: positions.grid(2, 3, device="cuda")),
    ("lengths must have one axis", lambda: positions.offsets([[3]])),
    ("new_tokens must be positive", lambda: positions.offsets([3], 0)),
    ("height must be positive", lambda: positions.grid(0, 3)),
    ("frames must be positive", lambda: positions.video(-1, 3, 3)),
    (r"spans\[1\] must be positive", lambda: positions.mrope([3, 0])),
    ("width must be positive", lambda: positions.mrope([(1, 3, 0)])),
    ("interval must be positive", lambda: positions.mrope([3], interval=0.0)),
    ("tokens = 9 must be a multiple of 2 \\* shards = 4", lambda: positions.zigzag(9, 2)),
    ("shards must be positive", lambda: positions.zigzag(8, 0)),
    ("zigzag needs tokens", lambda: positions.zigzag(shards=2)),
    (
        "must be a multiple of 2 \\* shards = 4 long",
        lambda: positions.zigzag(shards=2, cu_seqlens=[0, 6, 8]),
    ),
    ("must be cu_seqlens", lambda: positions.zigzag(8, 2, cu_seqlens=[0, 4])),
    ("must start with 0", lambda: positions.zigzag(shards=2, cu_seqlens=[4, 8])),
]


@pytest.mark.parametrize(("message", "make"), WRONG, ids=[message for message, _ in WRONG])
def test_impossible_arrangements(message: str, make: Any) -> None:
    with pytest.raises(RopeError, match=message):
        make()
