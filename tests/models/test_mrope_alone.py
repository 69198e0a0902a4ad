"""positions.mrope_from_ids against models of transformers that count in ways of their own."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rope_xp import RopeConfigError, RopeError, positions
from rope_xp.hf import _canvas

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = 11  # no number that stands for anything


def model(name: str) -> tuple[Any, Any]:
    """Return what counts positions in a model, without the model, and a configuration."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    (kind,) = {
        each
        for each in vars(module).values()
        if inspect.isclass(each) and "get_rope_index" in vars(each)
    }
    config = kind.config_class()
    stand_in = SimpleNamespace(config=config)
    for helper in ("get_vision_position_ids", "_group_visual_frames"):
        if hasattr(kind, helper):
            setattr(stand_in, helper, functools.partial(getattr(kind, helper), stand_in))
    if hasattr(kind, "_frame_end_idx"):
        stand_in._frame_end_idx = kind._frame_end_idx
    return functools.partial(kind.get_rope_index, stand_in), config


def padded(rows: list[list[int]], by: int) -> tuple[list[list[int]], Any]:
    """Return rows of one length, filled in front, and which tokens are theirs."""
    longest = max(map(len, rows))
    ids = [[by] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return ids, torch.tensor(mask)


# --- GLM-Image -----------------------------------------------------------------------------------


def glm_row(config: Any, images: list[tuple[int, int]]) -> list[int]:
    row = [TEXT] * 3
    for h, w in images:
        inside = [config.image_token_id] * (h * w)
        row += [config.image_start_token_id, *inside, config.image_end_token_id, TEXT]
    return [*row, TEXT, config.image_start_token_id]  # of the image that is to be made


@pytest.mark.parametrize("images", [[], [(2, 3)], [(4, 2), (1, 5)]], ids=str)
def test_glm_image(images: list[tuple[int, int]]) -> None:
    index, config = model("glm_image")
    many = [len(images) + 2, len(images) + 1]
    rows = [glm_row(config, images), [TEXT, *glm_row(config, [(w, h) for h, w in images])]]
    grids = [(1, h, w) for h, w in images] + [(1, 6, 4), (1, 3, 2)]
    grids += [(1, w, h) for h, w in images] + [(1, 4, 4)]
    ids, mask = padded(rows, config.text_config.pad_token_id)
    given = {
        "image_grid_thw": torch.tensor(grids),
        "images_per_sample": torch.tensor(many),
        "attention_mask": mask,
    }
    expected, _ = index(torch.tensor(ids), **given)
    np.testing.assert_array_equal(positions.mrope_from_ids(ids, given, config), expected.numpy())
    alone = {"image_grid_thw": given["image_grid_thw"][: many[0]]}
    expected, _ = index(torch.tensor(rows[:1]), **alone)
    found = positions.mrope_from_ids(rows[0], alone, config.to_dict())
    np.testing.assert_array_equal(found, expected[:, 0].numpy())


# --- HunYuan-VL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("around", [0, 2])
def test_hunyuan_vl(axes: int, around: int) -> None:
    index, config = model("hunyuan_vl")
    head_dim = config.text_config.hidden_size // config.text_config.num_attention_heads
    first = head_dim // 2 - 16 * (axes - 1)
    config.text_config.rope_parameters = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [first, *[16] * (axes - 1)],
    }
    image, merge = config.image_token_id, config.vision_config.spatial_merge_size
    parts: list[list[Any]] = [[2, (2, 3), 1, (1, 4), 3], [(3, 1), 1], [5]]
    rows, grids = [], []
    for part in parts:
        row: list[int] = []
        for each in part:
            if isinstance(each, int):
                row += [TEXT] * each
            else:
                grids.append((1, merge * each[0], merge * each[1]))
                row += [image] * (each[0] * (each[1] + 1) + around)
        rows.append(row)
    ids, mask = padded(rows, 0)
    kinds = (torch.tensor(ids) == image).long()
    given = {"image_grid_thw": torch.tensor(grids), "attention_mask": mask}
    expected, _ = index(torch.tensor(ids), mm_token_type_ids=kinds, **given)
    found = positions.mrope_from_ids(ids, given, config)
    assert found.shape == (axes, 3, len(ids[0]))
    np.testing.assert_array_equal(found, expected.numpy())
    told = given | {"mm_token_type_ids": kinds}
    np.testing.assert_array_equal(positions.mrope_from_ids(ids, told, config), expected.numpy())


# --- MiniCPM-V 4.7 -------------------------------------------------------------------------------

MARKS = {
    "slice_start_id": 21,
    "slice_end_id": 22,
    "image_start_id": 23,
    "image_end_id": 24,
    "newline_id": 25,
    "image_token_id": 26,
    "video_token_id": 27,
}


class Prompt:
    """A row of tokens and the grids of its pictures, as the processor writes them."""

    def __init__(self, rng: np.random.Generator, merge: int) -> None:
        self.rng, self.merge = rng, merge
        self.ids: list[int] = []
        self.grids: dict[int, list[tuple[int, int]]] = {26: [], 27: []}

    def crop(self, token: int, size: tuple[int, int], marks: tuple[int, int]) -> None:
        self.ids += [marks[0], *[token] * (size[0] * size[1]), marks[1]]
        self.grids[token].append((self.merge * size[0], self.merge * size[1]))

    def size(self) -> tuple[int, int]:
        h, w = self.rng.integers(1, 9, 2).tolist()
        return h, w

    def picture(self, token: int, rows: int, columns: int, alike: bool) -> None:
        self.crop(token, self.size(), (23, 24))
        one = self.size()
        for row in range(rows):
            for _ in range(columns):
                self.crop(token, one if alike else self.size(), (21, 22))
            self.ids += [25] * (row < rows - 1)

    def draw(self) -> None:
        for _ in range(self.rng.integers(1, 5)):
            self.ids += self.between()
            rows, columns = self.rng.integers(0, 4, 2).tolist()
            frames = int(self.rng.integers(1, 4))
            token = 26 if frames == 1 else 27
            for _ in range(frames):
                self.picture(token, rows, columns, alike=bool(self.rng.integers(2)))
        self.ids += self.between()

    def between(self) -> list[int]:
        some = ([], [TEXT], [TEXT, 25, TEXT, TEXT], [25], [25, 25])
        return list(some[self.rng.integers(len(some))])


@pytest.mark.parametrize("mode", ["16x", "4x"])
@pytest.mark.parametrize("seed", range(15))
def test_minicpm(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    index, config = model("minicpmv4_7")
    vars(config).update(MARKS)
    prompts = [Prompt(rng, 2 if mode == "4x" else 4) for _ in range(2)]
    for prompt in prompts:
        prompt.draw()
    ids, mask = padded([prompt.ids for prompt in prompts], 0)
    sizes = [[size for prompt in prompts for size in prompt.grids[token]] for token in (26, 27)]
    kinds = np.select([np.array(ids) == 26, np.array(ids) == 27], [1, 2])
    given = {
        "target_sizes": torch.tensor(sizes[0]) if sizes[0] else None,
        "target_sizes_videos": torch.tensor(sizes[1]) if sizes[1] else None,
        "attention_mask": mask,
        "downsample_mode": mode,
    }
    expected, _ = index(torch.tensor(ids), mm_token_type_ids=torch.from_numpy(kinds), **given)
    np.testing.assert_array_equal(positions.mrope_from_ids(ids, given, config), expected.numpy())
    config.downsample_mode = given.pop("downsample_mode")
    told = given | {"mm_token_type_ids": kinds}
    found = positions.mrope_from_ids(torch.tensor(ids), told, config.to_dict())
    np.testing.assert_array_equal(found, expected.numpy())


def test_what_lies_half_way_is_rounded_as_torch_does() -> None:
    for n in range(1, 64):
        for over in range(1, 120, 1 if n < 40 else 7):
            expected = torch.linspace(0, over - 1, n).round().long().numpy()
            np.testing.assert_array_equal(_canvas._spread(n, over), expected)


# --- videos with their sound ---------------------------------------------------------------------


def length_of_sound(name: str, tokens: int) -> int:
    """Return a length of features that makes as many tokens, by the model's own formula."""
    if name == "qwen2_5_omni":
        return 4 * tokens
    own = importlib.import_module("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    found = [n for n in range(1, 2000) if own._get_feat_extract_output_lengths(n) == tokens]
    return found[0]


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
@pytest.mark.parametrize("seconds", [1.0, 0.5, 2 / 3, 5.0])
@pytest.mark.parametrize("sound", [1, 7, 60, 160])
@pytest.mark.parametrize("grid", [(4, 4, 6), (9, 2, 4), (2, 100, 4), (1, 2, 2)], ids=str)
def test_videos_with_sound(
    name: str, seconds: float, sound: int, grid: tuple[int, int, int]
) -> None:
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    stem = {"qwen2_5_omni": "Qwen2_5Omni", "qwen3_omni_moe": "Qwen3OmniMoe"}[name]
    kind = getattr(module, f"{stem}PreTrainedModelForConditionalGeneration")
    config = getattr(module, f"{stem}ThinkerForConditionalGeneration").config_class()
    image, video, heard = config.image_token_id, config.video_token_id, config.audio_token_id
    vision, audio = 77, config.audio_start_token_id
    config.vision_start_token_id = vision
    many = grid[0] * grid[1] * grid[2] // 4
    # A processor writes chunks of both in turn, the video's first; positions do not depend on
    # where they change.
    woven = [video] * many
    woven[max(many - 1, 1) : many - 1] = [heard] * sound
    film = [vision, audio, *woven, TEXT + 1, TEXT + 2]
    rows = [
        [*[TEXT] * 3, vision, *[image] * 6, TEXT, *[TEXT] * 2, *film, *[TEXT] * 2],
        [TEXT, *film, *[TEXT] * 2, audio, *[heard] * 5, *[TEXT] * 3, *film, TEXT],
    ]
    ids, mask = padded(rows, 0)
    inputs = {
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "video_grid_thw": torch.tensor([grid] * 3),
        "attention_mask": mask,
    }
    per_grid = torch.tensor([seconds, 2 * seconds, seconds])
    stand_in = SimpleNamespace(config=config, spatial_merge_size=2)
    for helper in ("get_llm_pos_ids_for_vision", "get_chunked_index"):
        if hasattr(kind, helper):
            setattr(stand_in, helper, functools.partial(getattr(kind, helper), stand_in))
    lengths = [length_of_sound(name, n) for n in (sound, sound, 5, sound)]
    expected, _ = kind.get_rope_index(
        *(stand_in, torch.tensor(ids)),
        **inputs,
        use_audio_in_video=True,
        audio_seqlens=torch.tensor(lengths),
        second_per_grids=per_grid,
    )
    found = positions.mrope_from_ids(ids, inputs | {"second_per_grid_ts": per_grid}, config)
    np.testing.assert_array_equal(found, expected.numpy())


# --- errors --------------------------------------------------------------------------------------

GLM = {"model_type": "glm_image", "image_start_token_id": 1, "image_end_token_id": 2}
HUNYUAN = {
    "model_type": "hunyuan_vl",
    "image_token_id": 9,
    "vision_config": {"spatial_merge_size": 2},
    "text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}},
}
MINICPM = {"model_type": "minicpmv4_7", **MARKS}
OMNI = {
    "model_type": "qwen2_5_omni",
    "video_token_id": 8,
    "audio_token_id": 9,
    "position_id_per_seconds": 25,
    "vision_config": {"spatial_merge_size": 2},
}
VIDEO = {"video_grid_thw": [[1, 4, 4]]}
IMAGE = {"image_grid_thw": [[1, 4, 4]]}
CROP = [23, 26, 24]
ERRORS: dict[str, tuple[Any, Any, Any]] = {
    "16 tokens, where ids have 2": ([1, 5, 5, 2], IMAGE, GLM),
    "images_per_sample must have a number for each of 1 rows": (
        [1],
        IMAGE | {"images_per_sample": [2]},
        GLM,
    ),
    "6 tokens with the ends of lines, where ids have 5": ([9] * 5, IMAGE, HUNYUAN),
    "fewer grids than ids have images": ([9] * 6, {}, HUNYUAN),
    "image_grid_thw has more grids": ([1], IMAGE, HUNYUAN),
    "fewer grids than ids have pictures": (CROP, {}, MINICPM),
    "target_sizes has more grids": ([1], {"target_sizes": [[4, 4]]}, MINICPM),
    "a grid of (2, 1) after merging, where ids have 1": (
        CROP,
        {"target_sizes": [[8, 4]]},
        MINICPM,
    ),
    "of which 4 by 4 are merged": (CROP, {"target_sizes": [[2, 2]]}, MINICPM),
    "target_sizes must be integers (height, width)": (CROP, {"target_sizes": [4, 4]}, MINICPM),
    "ids begin with a picture": ([26, 24], {"target_sizes": [[4, 4]]}, MINICPM),
    "mm_token_type_ids must be 0, 1 or 2": ([5, 1], {"mm_token_type_ids": [0, 3]}, MINICPM),
    "4 tokens, where ids have 3": ([1, 2, 8, 8, 9, 3, 4], VIDEO, OMNI),
    "ids lack the two marks": ([2, 8, 8, 8, 8, 9, 3, 4], VIDEO, OMNI),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words: str) -> None:
    with pytest.raises(RopeError, match=re.escape(words)):
        positions.mrope_from_ids(*ERRORS[words])


LACKING: dict[str, dict[str, Any]] = {
    "image_end_token_id is missing": {**GLM, "image_end_token_id": None},
    "vision_config is missing": {**HUNYUAN, "vision_config": None},
    "mrope_section of rope_parameters must have three": {**HUNYUAN, "text_config": {}},
    "newline_id is missing": {**MINICPM, "newline_id": None},
}


@pytest.mark.parametrize("words", LACKING)
def test_a_configuration_that_lacks_something(words: str) -> None:
    with pytest.raises(RopeConfigError, match=re.escape(words)):
        positions.mrope_from_ids(CROP, {"target_sizes": [[4, 4]]}, LACKING[words])
