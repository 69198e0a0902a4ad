"""positions.mrope_from_ids of requests: deltas, packed sequences and what is refused."""

import re

import numpy as np
import pytest

from rope_xp import RopeConfigError, RopeError, positions

VISION = {"image_token_id": 9, "vision_config": {"spatial_merge_size": 2}}
QWEN = {"model_type": "qwen2_vl", "video_token_id": 8, **VISION}
RATE = {"vision_config": {"spatial_merge_size": 2, "tokens_per_second": 25}}
QWEN_2_5 = {**QWEN, "model_type": "qwen2_5_vl", **RATE}
GLM = {"model_type": "glm_image", "image_start_token_id": 1, "image_end_token_id": 2}
SECTIONS = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
HUNYUAN = {"model_type": "hunyuan_vl", **VISION, "text_config": SECTIONS}
MARKS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")
MINICPM = dict(zip((*MARKS, "image_token_id", "video_token_id"), range(21, 28), strict=True))
MINICPM["model_type"] = "minicpmv4_7"
OMNI = {"model_type": "qwen2_5_omni", **VISION, "video_token_id": 8, "audio_token_id": 9}
OMNI["position_id_per_seconds"] = 25
IMAGE, VIDEO = {"image_grid_thw": [[1, 4, 4]]}, {"video_grid_thw": [[1, 4, 4]]}
CROP, SIZES, PACKED = [23, 26, 24], {"target_sizes": [[8, 4]]}, {"cu_seqlens": [0, 1, 3]}
# What it says, the ids, the other inputs, the configuration and the options.
ERRORS = [
    ("has too few grids", [9] * 5, IMAGE, QWEN),
    ("has more grids than there are", [1], IMAGE, QWEN),
    ("4 tokens, but ids have 3", [9] * 3, IMAGE, QWEN),
    ("must be positive, in patches of which 2 by 2", [9], {"image_grid_thw": [[1, 3, 4]]}, QWEN),
    ("must be positive, in patches", [9], {"image_grid_thw": [[0, 4, 4]]}, QWEN),
    ("must be integers (frames, height, width)", [9], {"image_grid_thw": [1, 4, 4]}, QWEN),
    ("ids must hold integers", [0.5], {}, QWEN),
    ("ids must be (tokens,) or (batch, tokens)", [[[1]]], {}, QWEN),
    ("must have the shape of ids", [1, 2], {"attention_mask": [1]}, QWEN),
    ("pass numbers of sequences as segments=", [1, 2], {"attention_mask": [1, 2]}, QWEN),
    ("must be 0 (text), 1 (image) or 2", [1], {"mm_token_type_ids": [3]}, QWEN),
    ("second_per_grid_ts has 1 numbers for 0 videos", [1], {"second_per_grid_ts": [1.0]}, QWEN),
    ("16 tokens, but ids have 2", [1, 5, 5, 2], IMAGE, GLM),
    ("a number for each of 1 rows", [1], IMAGE | {"images_per_sample": [2]}, GLM),
    ("6 tokens, but ids have 5; a newline", [9] * 5, IMAGE, HUNYUAN),
    ("2 tokens, but ids have 3; downsample_mode", [23, 26, 26, 26, 24], SIZES, MINICPM),
    ("must be integers (height, width)", CROP, {"target_sizes": [4, 4]}, MINICPM),
    ("ids begin with an image", [26, 24], SIZES, MINICPM),
    ("mm_token_type_ids must be 0 (text), 1", [5, 1], {"mm_token_type_ids": [0, 3]}, MINICPM),
    ("4 tokens, but ids have 4 with audio", [1, 2, 8, 8, 8, 9, 3, 4], VIDEO, OMNI),
    ("ids lack the two marks", [2, 8, 8, 8, 8, 9, 3, 4], VIDEO, OMNI),
    ("ids of (tokens,) or (1, tokens)", [[1], [2]], {}, QWEN, PACKED),
    ("with at least 3", [1], {}, QWEN, PACKED),
    ("cu_seqlens needs images_per_sample", [1, 2, 3], IMAGE, GLM, PACKED),
    ("have the shape of ids, (1, 3)", [[1, 2, 3]], {}, QWEN, {"segments": [1, 1, 2]}),
    ("got (1, 2) from -1 on", [[1, 2]], {}, QWEN, {"segments": [[1, -1]]}),
    ("pass one of them", [1, 2, 3], {}, QWEN, PACKED | {"segments": [1, 1, 2]}),
]
BAD_CONFIGS = [
    ("'llama' has no get_rope_index", {**QWEN, "model_type": "llama"}),
    ("vision_config is missing", {**QWEN, "vision_config": None}),
    ("spatial_merge_size is missing", {**QWEN, "vision_config": {}}),
    ("video_start_token_id is missing", {**QWEN, "model_type": "glm4v"}),
    ("image_end_token_id is missing", {**GLM, "image_end_token_id": None}),
    ("mrope_section of rope_parameters must have at least", {**HUNYUAN, "text_config": {}}),
    ("newline_id is missing", {**MINICPM, "newline_id": None}),
]


@pytest.mark.parametrize(
    "case", [*ERRORS, *((m, CROP, SIZES, config) for m, config in BAD_CONFIGS)]
)
def test_mrope_from_ids_refuses_what_does_not_fit(case):
    message, ids, inputs, config, *options = case
    with pytest.raises(RopeError, match=re.escape(message)) as caught:
        positions.mrope_from_ids(ids, inputs, config, **dict(*options))
    assert isinstance(caught.value, RopeConfigError) == (case not in ERRORS)


def test_mrope_from_ids_does_not_read_a_part_that_is_a_path(tmp_path):
    (tmp_path / "config.json").write_text('{"spatial_merge_size": 2}')
    with pytest.raises(TypeError, match="config must be a dictionary"):
        positions.mrope_from_ids([[1, 2]], IMAGE, {**QWEN, "vision_config": str(tmp_path)})


@pytest.mark.parametrize(
    ("prompt", "grid"), [([5, 9, 9, 6], [[1, 2, 4]]), ([7, *[9] * 6, 5, 5], [[1, 4, 6]])]
)
def test_mrope_from_ids_gives_deltas_from_which_offsets_counts_on(prompt, grid):
    grids, n = {"image_grid_thw": grid}, len(prompt)
    whole = positions.mrope_from_ids(prompt + [5] * 7, grids, QWEN)
    at, delta = positions.mrope_from_ids(prompt, grids, QWEN, deltas=True)
    np.testing.assert_array_equal(at, whole[:, :n])
    new = positions.offsets(np.array([n + delta]), new_tokens=7)
    np.testing.assert_array_equal(np.broadcast_to(new, (3, 7)), whole[:, n:])


@pytest.mark.parametrize("config", [QWEN, HUNYUAN])
def test_mrope_from_ids_gives_packed_sequences_their_positions_alone(config):
    """Also at a seam between two images."""
    newline = int(config is HUNYUAN)
    rows = [1, 1, 1, *[9] * 2 * (2 + newline)], [*[9] * (2 + newline), 1, 1]
    grids = [[1, 4, 4]], [[1, 2, 4]]
    alone = [
        positions.mrope_from_ids(row, {"image_grid_thw": grid}, config)
        for row, grid in zip(rows, grids, strict=True)
    ]
    ends = [0, len(rows[0]), len(rows[0] + rows[1])]
    both = {"image_grid_thw": grids[0] + grids[1]}
    result = positions.mrope_from_ids(rows[0] + rows[1], both, config, cu_seqlens=ends)
    np.testing.assert_array_equal(result, np.concatenate(alone, axis=1))


@pytest.mark.parametrize(("config", "interval"), [(QWEN, 1.0), (QWEN_2_5, 25 * 2 / 3)])
def test_mrope_from_ids_in_another_library_equals_mrope_of_the_spans(config, interval):
    """Without text between images, their grids determine where one ends, unlike in transformers."""
    torch = pytest.importorskip("torch")
    inputs = {"image_grid_thw": [[1, 4, 4], [1, 2, 4]], "video_grid_thw": [[96, 2, 2]]}
    inputs["second_per_grid_ts"] = [2 / 3]
    result = positions.mrope_from_ids([1, *[9] * 6, 1, *[8] * 96], inputs, config, xp=torch)
    assert isinstance(result, torch.Tensor)
    spans = [1, (1, 2, 2), (1, 1, 2), 1, (96, 1, 1)]
    np.testing.assert_array_equal(result.numpy(), positions.mrope(spans, interval=interval))


def test_mrope_from_ids_counts_the_rest_as_a_sequence_and_no_padding():
    rest = positions.mrope_from_ids([1, 2, 3, 4, 5], {}, QWEN, **PACKED)
    assert rest.tolist() == [[0, 0, 1, 0, 1]] * 3
    padded = positions.mrope_from_ids([[1, 1, 1, 0, 0]], {}, QWEN, segments=[[4, 7, 7, 0, 0]])
    assert padded.tolist() == [[[0, 0, 1, 0, 0]]] * 3
