"""positions.mrope and mrope_from_ids against get_rope_index of transformers' models."""

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from rope_xp import RopeConfigError, RopeError, positions
from rope_xp.positions._rope_index import canvases, indexer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = 11  # no token id with a meaning


def test_every_model_with_get_rope_index_is_known():
    folder = Path(transformers.__file__).parent / "models"
    names = {
        path.parent.name
        for path in folder.glob("*/modeling_*.py")
        if "def get_rope_index" in path.read_text(encoding="utf-8")
    }
    assert names == {*indexer.MODELS}


def load(name):
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    classes = [c for c in vars(module).values() if inspect.isclass(c)]
    cls = next(c for c in classes if "get_rope_index" in vars(c))
    thinkers = [c for c in classes if c.__name__.endswith("ThinkerForConditionalGeneration")]
    config = [*thinkers, cls][0].config_class()
    model = object.__new__(cls)
    vars(model).update(config=config, spatial_merge_size=2)
    return model.get_rope_index, config


def pad(rows, value=0):
    missing = [max(map(len, rows)) - len(row) for row in rows]
    ids = [[value] * n + row for n, row in zip(missing, rows, strict=True)]
    mask = [[0] * n + [1] * len(row) for n, row in zip(missing, rows, strict=True)]
    return ids, torch.tensor(mask)


def compare(model, ids, inputs, types=None, **theirs):
    """Require the positions of a model, by its configuration, as an object and as a dictionary."""
    get_rope_index, config = model
    typed = {} if types is None else {"mm_token_type_ids": torch.as_tensor(types)}
    theirs = {k: v for k, v in inputs.items() if k != "second_per_grid_ts"} | typed | theirs
    expected, counted = get_rope_index(torch.tensor(ids), **theirs)
    for more, keys in (({}, config), (typed, config.to_dict())):
        result, deltas = positions.mrope_from_ids(
            torch.tensor(ids), inputs | more, keys, deltas=True
        )
        np.testing.assert_array_equal(result, expected.numpy())
        if config.model_type != "glm_image":  # which goes on with an image, and has no delta
            np.testing.assert_array_equal(deltas, counted.numpy().reshape(-1))
    compare_packed(ids, inputs | typed, config, expected.numpy())
    return expected


def compare_packed(ids, inputs, config, expected):
    """Require the same positions of the same sequences, packed without padding."""
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(ids))) != 0
    if len(mask) > 1 and config.model_type == "hunyuan_vl":
        return  # which numbers images through a batch
    per_token = ("mm_token_type_ids", "attention_mask")
    packed = {k: v[mask] if k in per_token else v for k, v in inputs.items() if v is not None}
    ends = np.cumsum([0, *mask.sum(axis=1)])
    for rows in (np.array(ids)[mask], np.array(ids)[mask][None]):
        shaped = packed | {k: packed[k].reshape(rows.shape) for k in per_token if k in packed}
        numbers = np.repeat(np.arange(1, len(ends)), np.diff(ends)).reshape(rows.shape)
        for split in ({"cu_seqlens": ends}, {"segments": numbers}):
            result = positions.mrope_from_ids(rows, shaped, config, **split)
            np.testing.assert_array_equal(result.reshape(len(expected), -1), expected[:, mask])


def build_prompt(name, config, parts):
    """Return ids, types and inputs of rows of n text tokens or merged (frames, height, width)."""
    merge, keys = config.vision_config.spatial_merge_size, config.to_dict()
    temporal = config.vision_config.temporal_merge_size if name.startswith("ernie") else 1
    video = config.image_token_id if name.startswith("glm") else config.video_token_id
    marks = keys.get("video_start_token_id", TEXT), keys.get("video_end_token_id", TEXT)
    grids = {"image_grid_thw": [], "video_grid_thw": []}
    separate = set(indexer.SEPARATE_FRAMES).difference(indexer.NEWLINES)
    rows = []
    for row_parts in parts:
        row = []
        for part in row_parts:
            if isinstance(part, int):
                row += [(TEXT, 0)] * part
                continue
            frames, height, width = part
            tokens = height * (width + (name in indexer.NEWLINES))
            if frames == 1:
                grids["image_grid_thw"].append([1, merge * height, merge * width])
                row += [(config.image_token_id, 1)] * tokens
                continue
            grids["video_grid_thw"].append([frames * temporal, merge * height, merge * width])
            between = [(TEXT, 0)] * 2 if name in separate else []
            frame = [*between, *[(video, 2)] * tokens]
            row += [(marks[0], 0), *frame * frames, (marks[1], 0)]
        rows.append(row)
    ids, mask = pad([[token for token, _ in row] for row in rows])
    types, _ = pad([[token_type for _, token_type in row] for row in rows])
    inputs = {key: torch.tensor(grid) if grid else None for key, grid in grids.items()}
    if name == "qwen2_5_vl" and grids["video_grid_thw"]:
        seconds = [25 / 12, 0.5, 1.0][: len(grids["video_grid_thw"])]
        inputs["second_per_grid_ts"] = torch.tensor(seconds)
    return ids, types, inputs | {"attention_mask": mask}


PROMPTS = [
    [[5]],
    [[3, (1, 2, 3), 2]],
    [[(1, 4, 6), 7], [2, (1, 2, 2), 1, (1, 6, 4), 2]],
    [[2, (3, 2, 4), 5], [4, (1, 2, 2), 3, (2, 5, 1), 1]],
]


@pytest.mark.parametrize("name", [*indexer.WHOLE_VIDEOS, *indexer.SEPARATE_FRAMES])
@pytest.mark.parametrize("parts", PROMPTS, ids=str)
def test_positions_of_images_and_videos_are_those_of_the_model(name, parts):
    model = load(name)
    ids, types, inputs = build_prompt(name, model[1], parts)
    intervals = {k: v for k, v in inputs.items() if k == "second_per_grid_ts"}
    compare(model, ids, inputs, types, **intervals)


def test_positions_of_one_sequence_in_another_library_are_those_of_its_spans():
    """Without text between images, their grids determine where one ends, unlike in transformers."""
    _, config = load("qwen2_vl")
    spans = [1, (1, 2, 2), (1, 1, 2), 1]
    ids, _, inputs = build_prompt("qwen2_vl", config, [spans])
    lists = {"image_grid_thw": inputs["image_grid_thw"].tolist()}
    result = positions.mrope_from_ids(ids[0], lists, config, xp=torch)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_array_equal(result.numpy(), positions.mrope(spans))


@pytest.mark.parametrize(
    ("spans", "second", "tokens_per_second"),
    [
        *(([3, (1, 2, 2), 1, (1, 6, 4), 2], 0.5, rate) for rate in (None, 2)),
        *(([2, (3, 2, 4), 5, (4, 2, 2), 3], 1.0, rate) for rate in (None, 1)),
        # Frames at 3 * (25 * 2 / 3) are at 50 in float32 and at 49 in float64.
        *(([2, (96, 1, 1)], second, rate) for second, rate in ((2 / 3, 25), (2 / 7, 25))),
        ([2, (96, 1, 1)], 2 / 2.3, 4),
    ],
)
def test_mrope_of_spans_is_that_of_the_model(spans, second, tokens_per_second):
    name = "qwen2_vl" if tokens_per_second is None else "qwen2_5_vl"
    get_rope_index, config = load(name)
    ids, types, inputs = build_prompt(name, config, [spans])
    interval = 1.0
    if "second_per_grid_ts" in inputs:
        config.vision_config.tokens_per_second = tokens_per_second
        inputs["second_per_grid_ts"] = torch.full(inputs["second_per_grid_ts"].shape, second)
        interval = float(np.float32(tokens_per_second) * np.float32(second))
    expected, _ = get_rope_index(torch.tensor(ids), mm_token_type_ids=torch.tensor(types), **inputs)
    marked = []
    for span in spans:
        marked += [span] if isinstance(span, int) or span[0] == 1 else [1, span, 1]
    result = positions.mrope(marked, interval=interval)
    np.testing.assert_array_equal(result, expected[:, 0].numpy())


def audio_length(name, tokens):
    if name == "qwen2_5_omni":
        return 4 * tokens
    module = importlib.import_module("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    return next(n for n in range(2000) if module._get_feat_extract_output_lengths(n) == tokens)


@pytest.mark.parametrize("name", indexer.OMNI)
@pytest.mark.parametrize("seconds", [1.0, 2 / 3, 5.0, 2 / 25])
@pytest.mark.parametrize("audio_tokens", [0, 1, 7, 160])
@pytest.mark.parametrize("grid", [(4, 4, 6), (2, 100, 4), (1, 2, 2)], ids=str)
def test_positions_of_qwen_omni_are_those_of_the_model(name, seconds, audio_tokens, grid):
    model = load(name)
    config = model[1]
    image, video, audio = config.image_token_id, config.video_token_id, config.audio_token_id
    vision_mark, audio_mark = 77, config.audio_start_token_id
    config.vision_start_token_id = vision_mark
    # A processor alternates chunks of both, the video first; positions do not depend on the place
    # of the change.
    film = [video] * (grid[0] * grid[1] * grid[2] // 4)
    film[max(len(film) - 1, 1) : len(film) - 1] = [audio] * audio_tokens
    film = [vision_mark, *([audio_mark] if audio_tokens else []), *film, TEXT + 1, TEXT + 2]
    rows = [
        [*[TEXT] * 3, vision_mark, *[image] * 6, *[TEXT] * 3, *film, *[TEXT] * 2],
        [TEXT, *film, *[TEXT] * 2, audio_mark, *[audio] * 5, *[TEXT] * 3, *film, TEXT],
    ]
    ids, mask = pad(rows)
    inputs = {
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "video_grid_thw": torch.tensor([grid] * 3),
        "attention_mask": mask,
    }
    per_grid = inputs["second_per_grid_ts"] = torch.tensor([seconds, 2 * seconds, seconds])
    lengths = [audio_tokens, audio_tokens, 5, audio_tokens] if audio_tokens else [5]
    sound = torch.tensor([audio_length(name, n) for n in lengths])
    theirs = {"use_audio_in_video": bool(audio_tokens), "audio_seqlens": sound}
    compare(model, ids, inputs, **theirs, second_per_grids=per_grid)


@pytest.mark.parametrize("images", [[], [(2, 3)], [(4, 2), (1, 5)]], ids=str)
def test_positions_of_glm_image_are_those_of_the_model(images):
    model = load("glm_image")
    config = model[1]
    start, end = config.image_start_token_id, config.image_end_token_id

    def build_row(sizes):
        images = [[start, *[config.image_token_id] * (h * w), end, TEXT] for h, w in sizes]
        inside = [token for image in images for token in image]
        return [*[TEXT] * 3, *inside, TEXT, start]  # of the image to be generated

    counts = [len(images) + 2, len(images) + 1]
    rows = [build_row(images), [TEXT, *build_row([(w, h) for h, w in images])]]
    grids = [(1, h, w) for h, w in images] + [(1, 6, 4), (1, 3, 2)]
    grids += [(1, w, h) for h, w in images] + [(1, 4, 4)]
    ids, mask = pad(rows, config.text_config.pad_token_id)
    inputs = {
        "image_grid_thw": torch.tensor(grids),
        "images_per_sample": torch.tensor(counts),
        "attention_mask": mask,
    }
    compare(model, ids, inputs)
    compare(model, rows[:1], {"image_grid_thw": inputs["image_grid_thw"][: counts[0]]})


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("marks", [0, 2])
def test_positions_of_hunyuan_vl_are_those_of_the_model(axes, marks):
    model = load("hunyuan_vl")
    config = model[1]
    head_dim = config.text_config.hidden_size // config.text_config.num_attention_heads
    sections = [head_dim // 2 - 16 * (axes - 1), *[16] * (axes - 1)]
    config.text_config.rope_parameters = {"rope_type": "default", "mrope_section": sections}
    image, merge = config.image_token_id, config.vision_config.spatial_merge_size
    parts = [[2, (2, 3), 1, (1, 4), 3], [(3, 1), 1], [5]]
    rows, grids = [], []
    for row_parts in parts:
        row = []
        for part in row_parts:
            if isinstance(part, int):
                row += [TEXT] * part
            else:
                grids.append((1, merge * part[0], merge * part[1]))
                row += [image] * (part[0] * (part[1] + 1) + marks)
        rows.append(row)
    ids, mask = pad(rows)
    inputs = {"image_grid_thw": torch.tensor(grids), "attention_mask": mask}
    expected = compare(model, ids, inputs, (torch.tensor(ids) == image).long())
    assert expected.shape == (axes, 3, len(ids[0]))
    alone = []
    for row, sizes in zip(rows, (grids[:2], grids[2:], None), strict=True):
        types = (torch.tensor([row]) == image).long()
        inputs = {"image_grid_thw": None if sizes is None else torch.tensor(sizes)}
        alone.append(model[0](torch.tensor([row]), mm_token_type_ids=types, **inputs)[0][:, 0])
    ends = np.cumsum([0, *map(len, rows)])
    packed = {"image_grid_thw": grids}
    result = positions.mrope_from_ids(
        [i for row in rows for i in row], packed, config, cu_seqlens=ends
    )
    np.testing.assert_array_equal(result, torch.cat(alone, dim=1).numpy())


MARKS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")
MARKED = dict(zip((*MARKS, "image_token_id", "video_token_id"), range(21, 28), strict=True))
TEXTS = ([], [TEXT], [TEXT, 25, TEXT, TEXT], [25], [25, 25])


def draw_minicpm_prompt(rng, merge):
    ids = []
    grids = {26: [], 27: []}

    def add_crop(token, size, marks):
        ids.extend([marks[0], *[token] * (size[0] * size[1]), marks[1]])
        grids[token].append([merge * n for n in size])

    for _ in range(rng.integers(1, 5)):
        ids += TEXTS[rng.integers(len(TEXTS))]
        rows, columns = rng.integers(0, 4, 2).tolist()
        frames = int(rng.integers(1, 4))
        token = 26 if frames == 1 else 27
        for _ in range(frames):
            thumbnail, size, *sizes = rng.integers(1, 9, (2 + rows * columns, 2)).tolist()
            add_crop(token, thumbnail, (23, 24))
            are_equal = rng.integers(2)
            for i, other in enumerate(sizes, 1):
                add_crop(token, size if are_equal else other, (21, 22))
                ids += [25] * (i % columns == 0 and i < len(sizes))
    return ids + TEXTS[rng.integers(len(TEXTS))], grids


@pytest.mark.parametrize("mode", ["16x", "4x"])
@pytest.mark.parametrize("seed", range(4))
def test_positions_of_minicpm_are_those_of_the_model(seed, mode):
    rng = np.random.default_rng(seed)
    model = load("minicpmv4_7")
    vars(model[1]).update(MARKED)
    prompts = [draw_minicpm_prompt(rng, 2 if mode == "4x" else 4) for _ in range(2)]
    ids, mask = pad([row for row, _ in prompts])
    sizes = [[size for _, grids in prompts for size in grids[token]] for token in (26, 27)]
    types = np.select([np.array(ids) == 26, np.array(ids) == 27], [1, 2])
    inputs = {
        "target_sizes": torch.tensor(sizes[0]) if sizes[0] else None,
        "target_sizes_videos": torch.tensor(sizes[1]) if sizes[1] else None,
        "attention_mask": mask,
    }
    compare(model, ids, inputs | {"downsample_mode": mode}, types)
    model[1].downsample_mode = mode
    compare(model, ids, inputs, types, downsample_mode=mode)


def test_rounded_linspace_of_minicpm_is_that_of_torch():
    for n in range(1, 64):
        for length in range(1, 120, 1 if n < 20 else 7):
            expected = torch.linspace(0, length - 1, n).round().long().numpy()
            np.testing.assert_array_equal(canvases._round_linspace(n, length), expected)


VISION = {"image_token_id": 9, "vision_config": {"spatial_merge_size": 2}}
QWEN = {"model_type": "qwen2_vl", **VISION}
GLM = {"model_type": "glm_image", "image_start_token_id": 1, "image_end_token_id": 2}
SECTIONS = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
HUNYUAN = {"model_type": "hunyuan_vl", **VISION, "text_config": SECTIONS}
MINICPM = {"model_type": "minicpmv4_7", **MARKED}
OMNI = {"model_type": "qwen2_5_omni", **VISION, "video_token_id": 8, "audio_token_id": 9}
OMNI["position_id_per_seconds"] = 25
IMAGE, VIDEO = {"image_grid_thw": [[1, 4, 4]]}, {"video_grid_thw": [[1, 4, 4]]}
CROP, SIZES = [23, 26, 24], {"target_sizes": [[4, 4]]}
ERRORS = [
    ("has too few grids", [9] * 5, IMAGE, QWEN),
    ("has more grids than there are", [1], IMAGE, QWEN),
    ("4 tokens, but ids have 3", [9] * 3, IMAGE, QWEN),
    ("must be positive, in patches of which 2 by 2", [9], {"image_grid_thw": [[1, 3, 4]]}, QWEN),
    ("must be integers (frames, height, width)", [9], {"image_grid_thw": [1, 4, 4]}, QWEN),
    ("ids must hold integers", [0.5], {}, QWEN),
    ("ids must be (tokens,) or (batch, tokens)", [[[1]]], {}, QWEN),
    ("must have the shape of ids", [1, 2], {"attention_mask": [1]}, QWEN),
    ("must be 0 (text), 1 (image) or 2", [1], {"mm_token_type_ids": [3]}, QWEN),
    ("second_per_grid_ts has 1 numbers for 0 videos", [1], {"second_per_grid_ts": [1.0]}, QWEN),
    ("16 tokens, but ids have 2", [1, 5, 5, 2], IMAGE, GLM),
    ("a number for each of 1 rows", [1], IMAGE | {"images_per_sample": [2]}, GLM),
    ("6 tokens, but ids have 5; a newline", [9] * 5, IMAGE, HUNYUAN),
    ("target_sizes has more grids", [1], SIZES, MINICPM),
    ("2 tokens, but ids have 1; downsample_mode", CROP, {"target_sizes": [[8, 4]]}, MINICPM),
    ("of which 4 by 4 are merged", CROP, {"target_sizes": [[2, 2]]}, MINICPM),
    ("must be integers (height, width)", CROP, {"target_sizes": [4, 4]}, MINICPM),
    ("ids begin with an image", [26, 24], SIZES, MINICPM),
    ("mm_token_type_ids must be 0, 1 or 2", [5, 1], {"mm_token_type_ids": [0, 3]}, MINICPM),
    ("4 tokens, but ids have 3", [1, 2, 8, 8, 9, 3, 4], VIDEO, OMNI),
    ("ids lack the two marks", [2, 8, 8, 8, 8, 9, 3, 4], VIDEO, OMNI),
]


BAD_CONFIGS = [
    (message, CROP, SIZES, config)
    for message, config in (
        ("'llama' has no get_rope_index", {**QWEN, "model_type": "llama"}),
        ("vision_config is missing", {**QWEN, "vision_config": None}),
        ("spatial_merge_size is missing", {**QWEN, "vision_config": {}}),
        ("video_start_token_id is missing", {**QWEN, "model_type": "glm4v"}),
        ("image_end_token_id is missing", {**GLM, "image_end_token_id": None}),
        ("mrope_section of rope_parameters must have at least", {**HUNYUAN, "text_config": {}}),
        ("newline_id is missing", {**MINICPM, "newline_id": None}),
    )
]


@pytest.mark.parametrize("case", [*ERRORS, *BAD_CONFIGS])
def test_mrope_from_ids_refuses_what_does_not_fit(case):
    message, *arguments = case
    error = RopeConfigError if case in BAD_CONFIGS else RopeError
    with pytest.raises(error, match=re.escape(message)):
        positions.mrope_from_ids(*arguments)


def test_packed_sequences_that_do_not_fit_are_refused():
    options = {"cu_seqlens": [0, 1, 3]}
    for ids, message in (([[1], [2]], "ids of (tokens,) or (1, tokens)"), ([1], "at least 3")):
        with pytest.raises(RopeError, match=re.escape(message)):
            positions.mrope_from_ids(ids, {}, QWEN, **options)
    with pytest.raises(RopeError, match="cu_seqlens needs images_per_sample"):
        positions.mrope_from_ids([1, 2, 3], IMAGE, GLM, **options)
    rest = positions.mrope_from_ids([1, 2, 3, 4, 5], {}, QWEN, **options)
    assert rest.tolist() == [positions.packed([0, 1, 3], total=5).tolist()] * 3


def test_mrope_from_ids_refuses_segments_that_do_not_fit():
    ids = [[1, 2, 3]]
    for options, message in (
        ({"segments": [1, 1, 2]}, "segments must have the shape of ids, (1, 3)"),
        ({"segments": [[1, -1, 2]]}, "numbers from 0 on; got (1, 3) from -1 on"),
        ({"segments": [[1, 1, 2]], "cu_seqlens": [0, 3]}, "pass one of them"),
    ):
        with pytest.raises(RopeError, match=re.escape(message)):
            positions.mrope_from_ids(ids, {}, QWEN, **options)
    with pytest.raises(RopeError, match="pass numbers of sequences as segments="):
        positions.mrope_from_ids(ids, {"attention_mask": [[1, 1, 2]]}, QWEN)
    padded = positions.mrope_from_ids([[1, 1, 1, 0]], {}, QWEN, segments=[[4, 7, 7, 0]])
    assert padded.tolist() == [[[0, 0, 1, 0]]] * 3


def test_deltas_carry_positions_over_chunks_merged_batches_and_drafts():
    """Beside whole prompts with the tokens that are generated."""
    prompts = [[5, 9, 9, 6], [7, *[9] * 6, 5, 5]]
    grids = [[[1, 2, 4]], [[1, 4, 6]]]
    whole = [
        positions.mrope_from_ids(prompt + [5] * 7, {"image_grid_thw": grid}, QWEN)
        for prompt, grid in zip(prompts, grids, strict=True)
    ]
    requests = []
    for prompt, grid, right in zip(prompts, grids, whole, strict=True):
        at, delta = positions.mrope_from_ids(prompt, {"image_grid_thw": grid}, QWEN, deltas=True)
        for first in range(0, len(prompt), 3):  # in chunks
            np.testing.assert_array_equal(
                at[:, first : first + 3], right[:, : len(prompt)][:, first : first + 3]
            )
        requests.append((len(prompt), int(delta)))
    lengths, deltas = map(np.array, zip(*requests, strict=True))  # merged into one batch
    for drafted, accepted in ((1, 1), (4, 2), (3, 3)):
        new = positions.offsets(lengths + deltas, new_tokens=drafted)
        for i, right in enumerate(whole):
            span = right[:, lengths[i] : lengths[i] + drafted]
            np.testing.assert_array_equal(np.broadcast_to(new[i], span.shape), span)
        lengths = lengths + accepted


def test_images_at_the_seam_of_packed_sequences_belong_to_their_own():
    spans, ends = [[3, (1, 2, 2)], [(1, 1, 2), 2]], [0, 7, 11]
    inputs = {"image_grid_thw": [[1, 4, 4], [1, 2, 4]]}
    ids = [1, 1, 1, *[9] * 6, 1, 1]
    expected = np.concatenate([positions.mrope(s) for s in spans], axis=1)
    result = positions.mrope_from_ids(ids, inputs, QWEN, cu_seqlens=ends)
    np.testing.assert_array_equal(result, expected)
