"""positions.mrope_from_ids against get_rope_index of transformers' models."""

import importlib
import inspect
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from rope_xp import positions
from rope_xp.positions._rope_index import canvases, models

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
    assert names == {*models.MODELS}


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
    if len(ids) == 1 or config.model_type != "hunyuan_vl":  # which numbers images through a batch
        compare_packed(ids, inputs | typed, config, expected.numpy())
    return expected


def compare_packed(ids, inputs, config, expected):
    """Require the same positions of the same sequences, packed without padding."""
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(ids))) != 0
    per_token = ("mm_token_type_ids", "attention_mask")
    packed = {k: v[mask] if k in per_token else v for k, v in inputs.items() if v is not None}
    ends = np.cumsum([0, *mask.sum(axis=1)])
    for rows in (np.array(ids)[mask], np.array(ids)[mask][None]):
        shaped = packed | {k: packed[k].reshape(rows.shape) for k in per_token if k in packed}
        numbers = np.repeat(np.arange(1, len(ends)), np.diff(ends)).reshape(rows.shape)
        for split in ({"cu_seqlens": ends}, {"segments": numbers}):
            result = positions.mrope_from_ids(rows, shaped, config, **split)
            np.testing.assert_array_equal(result.reshape(len(expected), -1), expected[:, mask])


def build_prompt(name, config, parts, marks=0):
    """Return ids, types and inputs of rows of n text tokens or merged (frames, height, width)."""
    merge, keys = config.vision_config.spatial_merge_size, config.to_dict()
    temporal = config.vision_config.temporal_merge_size if name.startswith("ernie") else 1
    video = keys["image_token_id" if name.startswith(("glm", "hunyuan")) else "video_token_id"]
    start, end = (keys.get(f"video_{edge}_token_id", TEXT) for edge in ("start", "end"))
    grids = {"image_grid_thw": [], "video_grid_thw": []}
    has_newlines = name in (*models.NEWLINES, "hunyuan_vl")
    between = [(TEXT, 0)] * 2 if name in models.SEPARATE_FRAMES and not has_newlines else []
    rows = []
    for row_parts in parts:
        row = []
        for part in row_parts:
            if isinstance(part, int):
                row += [(TEXT, 0)] * part
                continue
            frames, height, width = part
            tokens = height * (width + has_newlines) + marks
            size = [merge * height, merge * width]
            if frames == 1:
                grids["image_grid_thw"].append([1, *size])
                row += [(config.image_token_id, 1)] * tokens
            else:
                grids["video_grid_thw"].append([frames * temporal, *size])
                row += [(start, 0), *[*between, *[(video, 2)] * tokens] * frames, (end, 0)]
        rows.append(row)
    ids, mask = pad([[token for token, _ in row] for row in rows])
    types, _ = pad([[token_type for _, token_type in row] for row in rows])
    inputs = {key: torch.tensor(grid) for key, grid in grids.items() if grid}
    return ids, types, inputs | {"attention_mask": mask}


PROMPTS = [
    [[5]],
    [[3, (1, 2, 3), 2]],
    [[(1, 4, 6), 7], [2, (1, 2, 2), 1, (1, 6, 4), 2]],
    [[2, (3, 2, 4), 5], [4, (1, 2, 2), 3, (2, 5, 1), 1]],
    # Frames at 3 * (25 * 2 / 3) are at 50 in float32 and at 49 in float64.
    [[2, (96, 1, 1), 3], [(96, 1, 1)]],
]


@pytest.mark.parametrize("name", [*models.WHOLE_VIDEOS, *models.SEPARATE_FRAMES])
@pytest.mark.parametrize("parts", PROMPTS, ids=str)
def test_mrope_from_ids_of_images_and_videos_equals_the_model(name, parts):
    model = load(name)
    ids, types, inputs = build_prompt(name, model[1], parts)
    seconds = {}
    if name == "qwen2_5_vl" and "video_grid_thw" in inputs:
        model[1].vision_config.tokens_per_second = 25
        seconds["second_per_grid_ts"] = torch.tensor([2 / 3, 2 / 7])
    compare(model, ids, inputs | seconds, types, **seconds)


def audio_length(name, tokens):
    if name == "qwen2_5_omni":
        return 4 * tokens
    module = importlib.import_module("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    return next(n for n in range(2000) if module._get_feat_extract_output_lengths(n) == tokens)


@pytest.mark.parametrize("name", models.OMNI)
@pytest.mark.parametrize(
    ("grid", "audio_tokens", "seconds"),
    [
        *(((4, 4, 6), n, seconds) for n in (7, 160) for seconds in (1.0, 2 / 3, 5.0, 2 / 25)),
        *(((2, 100, 4), n, 2 / 3) for n in (0, 160)),
        ((1, 2, 2), 1, 1.0),
    ],
)
def test_mrope_from_ids_of_qwen_omni_equals_the_model(name, grid, audio_tokens, seconds):
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
    ids, mask = pad(
        [
            [*[TEXT] * 3, vision_mark, *[image] * 6, *[TEXT] * 3, *film, *[TEXT] * 2],
            [TEXT, *film, *[TEXT] * 2, audio_mark, *[audio] * 5, *[TEXT] * 3, *film, TEXT],
        ]
    )
    grids = {
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "video_grid_thw": torch.tensor([grid] * 3),
    }
    per_grid = torch.tensor([seconds, 2 * seconds, seconds])
    lengths = [audio_tokens, audio_tokens, 5, audio_tokens] if audio_tokens else [5]
    sound = torch.tensor([audio_length(name, n) for n in lengths])
    theirs = {"use_audio_in_video": bool(audio_tokens), "audio_seqlens": sound}
    inputs = {**grids, "attention_mask": mask, "second_per_grid_ts": per_grid}
    compare(model, ids, inputs, **theirs, second_per_grids=per_grid)


@pytest.mark.parametrize("images", [[], [(2, 3)], [(4, 2), (1, 5)]], ids=str)
def test_mrope_from_ids_of_glm_image_equals_the_model(images):
    model = load("glm_image")
    config = model[1]
    start, end = config.image_start_token_id, config.image_end_token_id

    def build_row(sizes):
        images = ([start, *[config.image_token_id] * (h * w), end, TEXT] for h, w in sizes)
        return [*[TEXT] * 3, *chain(*images), TEXT, start, TEXT]  # of the image to be generated

    turned = [(w, h) for h, w in images]
    rows = [build_row(images), [TEXT, *build_row(turned)]]
    grids = torch.tensor([(1, *size) for size in (*images, (6, 4), (3, 2), *turned, (4, 4))])
    ids, mask = pad(rows, config.text_config.pad_token_id)
    counts = torch.tensor([len(images) + 2, len(images) + 1])
    inputs = {"image_grid_thw": grids, "images_per_sample": counts, "attention_mask": mask}
    compare(model, ids, inputs)
    compare(model, rows[:1], {"image_grid_thw": grids[: counts[0]]})


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("marks", [0, 2])
def test_mrope_from_ids_of_hunyuan_vl_equals_the_model(axes, marks):
    model = load("hunyuan_vl")
    text = model[1].text_config
    sections = [text.hidden_size // text.num_attention_heads // 2 - 16 * (axes - 1)]
    sections += [16] * (axes - 1)
    text.rope_parameters = {"rope_type": "default", "mrope_section": sections}
    for rows in ([[2, (1, 2, 3), 1, (1, 1, 4), 3], [(1, 3, 1), 1], [5]], [[2, (1, 2, 3), 1]]):
        ids, types, inputs = build_prompt("hunyuan_vl", model[1], rows, marks)
        assert len(compare(model, ids, inputs, types)) == axes


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
            sizes = sizes[: len(sizes) - rng.integers(2)]  # some without their last slice
            for i, other in enumerate(sizes, 1):
                add_crop(token, size if are_equal else other, (21, 22))
                ids += [25] * (i % columns == 0 and i < len(sizes))
    return ids + TEXTS[rng.integers(len(TEXTS))], grids


@pytest.mark.parametrize("mode", ["16x", "4x"])
@pytest.mark.parametrize("seed", range(4))
def test_mrope_from_ids_of_minicpm_equals_the_model(seed, mode):
    rng = np.random.default_rng(seed)
    model = load("minicpmv4_7")
    vars(model[1]).update(MARKED)
    prompts = [draw_minicpm_prompt(rng, 2 if mode == "4x" else 4) for _ in range(2)]
    ids, mask = pad([row for row, _ in prompts])
    sizes = [[size for _, grids in prompts for size in grids[token]] for token in (26, 27)]
    types = np.select([np.array(ids) == 26, np.array(ids) == 27], [1, 2])
    images, videos = (torch.tensor(size) if size else None for size in sizes)
    inputs = {"target_sizes": images, "target_sizes_videos": videos, "attention_mask": mask}
    compare(model, ids, inputs | {"downsample_mode": mode}, types)
    model[1].downsample_mode = mode
    compare(model, ids, inputs, types, downsample_mode=mode)


def test_rounded_linspace_of_minicpm_is_that_of_torch():
    for n in range(1, 64):
        for length in range(1, 120, 1 if n < 20 else 7):
            expected = torch.linspace(0, length - 1, n).round().long().numpy()
            np.testing.assert_array_equal(canvases._round_linspace(n, length), expected)
