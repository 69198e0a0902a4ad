"""What becomes of casts and copies of a patched model, and the rotary modules patched alone."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.exhaustive import exhaustive
from support.patched import LOGITS, ROTATIONS, counted, logits
from support.small_models import make

from rope_xp.integrations.transformers import patch, unpatch


@pytest.fixture(autouse=True)
def rotations(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    return counted(monkeypatch)


def test_a_model_that_was_cast_to_float64() -> None:
    model = make("llama").double()
    before = logits(model)
    # Its own angles come of frequencies in float32.
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)


def test_a_new_module_of_a_patched_class_does_as_the_models_own() -> None:
    model = make("llama")
    own = model.model.rotary_emb
    x, positions = torch.zeros(1, dtype=torch.bfloat16), torch.arange(9)[None]
    expected = own(x, positions)
    new = type(patch(model).model.rotary_emb)(model.config)
    assert all(map(torch.equal, new(x, position_ids=positions), expected))
    assert own(x, positions)[0].dtype == torch.float32


def by_torch(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "an old protocol": lambda model: pickle.loads(pickle.dumps(model, protocol=0)),
    "torch.save": by_torch,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("rotation", [True, False])
def test_copies(rotation: bool, copied: str, rotations: list[None]) -> None:
    model = make("llama")
    before = logits(model)
    after = logits(patch(model, rotation=rotation))
    done = len(rotations)
    again = COPIES[copied](model)
    assert torch.equal(logits(again), after)
    assert len(rotations) == 2 * done == 2 * ROTATIONS * rotation
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    unpatch(model)  # and not the copy
    assert torch.equal(logits(again), after)
    assert torch.equal(logits(unpatch(again)), before)


# --- the light way -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("llama", "gemma3_text", "llama4_text")),
        *((name, torch.bfloat16) for name in ("llama", "deepseek_v4", "llama4_text")),
        *((name, torch.float64) for name in ("llama", "llama4_text")),
        *(exhaustive(name, torch.bfloat16) for name in ("olmo2", "cohere", "gemma3_text")),
    ],
)
def test_the_rotary_modules_alone(name: str, dtype: torch.dtype, rotations: list[None]) -> None:
    model = make(name).to(dtype)
    own = {id(m) for m in model.modules() if hasattr(m, "inv_freq") or "Rotary" in str(type(m))}
    kinds = {id(module): type(module) for module in model.modules()}
    asked = model.model.rotary_emb
    label = {"layer_type": next(iter(asked.config.rope_parameters))} if name in LABELLED else {}
    x, positions = torch.zeros(1, 9, 4, dtype=dtype), torch.arange(9)[None]
    theirs = asked(x, positions, **label)
    patch(model, rotation=False)
    changed = {id(module) for module in model.modules() if type(module) is not kinds[id(module)]}
    assert changed == own
    ours = asked(x, positions, **label)
    for mine, other in zip(tables(ours), tables(theirs), strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        # Angles below 9, of float32 frequencies, or rounded ones where the model was cast.
        close = max(1e-5, 9 * torch.finfo(dtype).eps)
        torch.testing.assert_close(mine, other, rtol=0, atol=close)
    assert logits(model).dtype == dtype
    assert not rotations


LABELLED = ("deepseek_v4", "gemma3_text")


def tables(given: Any) -> tuple[torch.Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


def test_tables_of_an_image_keep_their_axis_for_a_batch() -> None:
    module = importlib.import_module("transformers.models.sam3.modeling_sam3")
    rotary = module.Sam3ViTRotaryEmbedding(transformers.Sam3ViTConfig())
    positions = torch.stack((torch.arange(6) % 3, torch.arange(6) // 3), dim=-1)
    theirs = rotary(torch.zeros(1), positions)
    ours = patch(rotary, rotation=False)(torch.zeros(1), positions)
    for mine, other in zip(ours, theirs, strict=True):
        # float32 angles below 3
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
