"""positions.mrope_from_ids against get_rope_index of every model of transformers that has one."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from rope_xp import RopeConfigError, RopeError, positions
from rope_xp.hf import _counting

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODELS = Path(transformers.__file__).parent / "models"
TEXT = 11  # no number that stands for anything
COUNTED = (*_counting.WHOLE, *_counting.BY_FRAME)


def test_every_model_is_counted_or_said_not_to_be() -> None:
    own = {
        path.parent.name
        for path in MODELS.glob("*/modeling_*.py")
        if "def get_rope_index" in path.read_text(encoding="utf-8")
    }
    assert own == {*COUNTED, *_counting.BY_TIME, *_counting.TO_IMAGE, *_counting.ALONE}


def model(name: str) -> Any:
    """Return the class of a model that counts positions, and its configuration."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    found = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and "get_rope_index" in vars(kind)
    ]
    return found[0], found[0].config_class()


class Prompt(NamedTuple):
    """A batch as a processor makes it, and what each token is."""

    ids: list[list[int]]
    kinds: list[list[int]]
    inputs: dict[str, Any]


def prompt(name: str, config: Any, parts: list[list[Any]]) -> Prompt:
    """Return sequences of texts, ``n``, and images and videos, (frames, height, width) merged."""
    keys = config.to_dict()
    merge = config.vision_config.spatial_merge_size
    frames_merged = config.vision_config.temporal_merge_size if name.startswith("ernie") else 1
    video = config.image_token_id if name.startswith("glm") else config.video_token_id
    marks = keys.get("video_start_token_id", TEXT), keys.get("video_end_token_id", TEXT)
    ids, kinds, images, videos = [], [], [], []
    for sequence in parts:
        tokens: list[tuple[int, int]] = []
        for part in sequence:
            if isinstance(part, int):
                tokens += [(TEXT, 0)] * part
                continue
            frames, height, width = part
            grid = [frames * (frames_merged if frames > 1 else 1), merge * height, merge * width]
            if frames == 1:
                images.append(grid)
                tokens += [(config.image_token_id, 1)] * (height * width)
                continue
            videos.append(grid)
            between = [(TEXT, 0)] * 2 if name in _counting.BY_FRAME else []
            each = [*between, *[(video, 2)] * (height * width)]
            tokens += [(marks[0], 0), *each * frames, (marks[1], 0)]
        ids.append([number for number, _ in tokens])
        kinds.append([kind for _, kind in tokens])
    longest = max(map(len, ids))
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in ids]
    ids = [[0] * (longest - len(row)) + row for row in ids]  # padded in front
    kinds = [[0] * (longest - len(row)) + row for row in kinds]
    inputs = {
        "image_grid_thw": torch.tensor(images) if images else None,
        "video_grid_thw": torch.tensor(videos) if videos else None,
        "attention_mask": torch.tensor(mask),
    }
    if name == "qwen2_5_vl" and videos:
        inputs["second_per_grid_ts"] = torch.tensor([25 / 12, 0.5, 1.0][: len(videos)])
    return Prompt(ids, kinds, inputs)


def theirs(kind: type, config: Any, given: Prompt) -> Any:
    """Return what the model's own code counts, without building the model."""
    stand_in = SimpleNamespace(config=config)
    stand_in.get_vision_position_ids = functools.partial(kind.get_vision_position_ids, stand_in)
    ids, kinds = torch.tensor(given.ids), torch.tensor(given.kinds)
    found, _ = kind.get_rope_index(stand_in, ids, mm_token_type_ids=kinds, **given.inputs)
    return found.numpy()


PROMPTS: list[list[list[Any]]] = [
    [[5]],
    [[3, (1, 2, 3), 2]],
    [[(1, 4, 6), 7], [2, (1, 2, 2), 1, (1, 6, 4), 2]],
    [[2, (3, 2, 4), 5], [4, (1, 2, 2), 3, (2, 5, 1), 1]],
]


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("parts", PROMPTS, ids=str)
def test_equal_to_transformers(name: str, parts: list[list[Any]]) -> None:
    kind, config = model(name)
    given = prompt(name, config, parts)
    expected = theirs(kind, config, given)
    found = positions.mrope_from_ids(given.ids, given.inputs, config)
    np.testing.assert_array_equal(found, expected)
    told = given.inputs | {"mm_token_type_ids": given.kinds}
    other = positions.mrope_from_ids(torch.tensor(given.ids), told, config.to_dict())
    np.testing.assert_array_equal(other, expected)


@pytest.mark.parametrize("name", _counting.BY_TIME)
@pytest.mark.parametrize("seconds", [1.0, 0.5, 2 / 3, 2 / 25])
def test_equal_to_transformers_by_time(name: str, seconds: float) -> None:
    """Images, videos and sound, each between marks, as processors of Qwen-Omni write them."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    stem = {"qwen2_5_omni": "Qwen2_5Omni", "qwen3_omni_moe": "Qwen3OmniMoe"}[name]
    kind = getattr(module, f"{stem}PreTrainedModelForConditionalGeneration")
    whole = getattr(module, f"{stem}ThinkerForConditionalGeneration").config_class()
    image, video, sound = whole.image_token_id, whole.video_token_id, whole.audio_token_id
    vision, audio = 77, whole.audio_start_token_id
    whole.vision_start_token_id = vision
    rows = [
        [TEXT] * 3 + [vision] + [image] * 6 + [TEXT] * 2,
        [TEXT] + [vision] + [video] * 24 + [TEXT] * 3 + [audio] + [sound] * 5 + [TEXT] * 2,
    ]
    longest = max(map(len, rows))
    ids = [[0] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    inputs = {
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "video_grid_thw": torch.tensor([[4, 4, 6]]),
        "attention_mask": torch.tensor(mask),
    }
    per_grid = torch.tensor([seconds])
    stand_in = SimpleNamespace(config=whole, spatial_merge_size=2)
    stand_in.get_llm_pos_ids_for_vision = functools.partial(
        kind.get_llm_pos_ids_for_vision, stand_in
    )
    lengths = torch.tensor([20 if name == "qwen2_5_omni" else 34])  # which make 5 tokens
    expected, _ = kind.get_rope_index(
        *(stand_in, torch.tensor(ids)),
        **inputs,
        audio_seqlens=lengths,
        second_per_grids=per_grid,
    )
    found = positions.mrope_from_ids(ids, inputs | {"second_per_grid_ts": per_grid}, whole)
    np.testing.assert_array_equal(found, expected.numpy())


def test_one_sequence_and_another_library() -> None:
    kind, config = model("qwen2_vl")
    given = prompt("qwen2_vl", config, [[2, (1, 2, 3), 4]])
    expected = theirs(kind, config, given)[:, 0]
    mine = {"image_grid_thw": given.inputs["image_grid_thw"].tolist()}
    found = positions.mrope_from_ids(given.ids[0], mine, config, xp=torch)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_two_images_side_by_side() -> None:
    """No text is between them: their grids say where one ends. transformers takes it for one."""
    _, config = model("qwen2_vl")
    given = prompt("qwen2_vl", config, [[1, (1, 2, 2), (1, 1, 2), 1]])
    found = positions.mrope_from_ids(given.ids, given.inputs, config)[:, 0]
    np.testing.assert_array_equal(found, positions.mrope([1, (1, 2, 2), (1, 1, 2), 1]))


QWEN = {
    "model_type": "qwen2_vl",
    "image_token_id": 9,
    "vision_config": {"spatial_merge_size": 2},
}
ONE = {"image_grid_thw": [[1, 4, 4]]}
ERRORS: dict[str, tuple[Any, Any, Any]] = {
    "has fewer grids than ids": ([9] * 5, ONE, QWEN),
    "has more grids than ids": ([1], ONE, QWEN),
    "4 tokens, where ids have 3": ([9] * 3, ONE, QWEN),
    "must be positive, in patches of which 2 by 2": ([9], {"image_grid_thw": [[1, 3, 4]]}, QWEN),
    "must be integers (frames, height, width)": ([9], {"image_grid_thw": [1, 4, 4]}, QWEN),
    "ids must hold integers": ([0.5], {}, QWEN),
    "ids must be (tokens,) or (batch, tokens)": ([[[1]]], {}, QWEN),
    "must have the shape of ids": ([1, 2], {"attention_mask": [1]}, QWEN),
    "must be 0 (text), 1 (image) or 2": ([1], {"mm_token_type_ids": [3]}, QWEN),
    "second_per_grid_ts has 1 numbers for 0 videos": ([1], {"second_per_grid_ts": [1.0]}, QWEN),
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors(words: str) -> None:
    with pytest.raises(RopeError, match=re.escape(words)):
        positions.mrope_from_ids(*ERRORS[words])


@pytest.mark.parametrize("name", ["llama", None])
def test_models_that_count_otherwise(name: str | None) -> None:
    with pytest.raises(RopeConfigError, match="is none whose positions are counted here"):
        positions.mrope_from_ids([1], {}, QWEN | {"model_type": name})


def test_a_configuration_that_lacks_something() -> None:
    for lacking in ({"vision_config": None}, {"vision_config": {}}, {"model_type": "glm4v"}):
        with pytest.raises(RopeConfigError, match="missing"):
            positions.mrope_from_ids([1], {}, QWEN | lacking)
