"""Models of each supported version of transformers, patched and not; see .ci/versions."""

import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.small_models import make, vision_language

from rope_xp.integrations.transformers import patch, unpatch

pytestmark = pytest.mark.slow  # the short suite patches models in tests/models/test_patch.py

VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
OLD = ("cohere", "gemma2", "gpt_neox", "llama", "mistral", "phi3", "qwen2")
NAMES = OLD if VERSION < (4, 50) else (*OLD, "deepseek_v3", "gemma3_text")
OPTIONS: dict[str, Any] = {"gemma2": {"head_dim": 16}, "phi3": {"rope_parameters": None}}
TOKENS = torch.arange(24)[None] % 61 + 1
ROUNDING = 2e-5  # of float32 logits of up to 30, after attention with large weights


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits  # type: ignore[no-any-return]  # a tensor


@pytest.mark.parametrize("name", NAMES)
def test_a_patched_model_has_the_same_logits(name):
    model = make(name, **OPTIONS.get(name, {}))
    before = logits(model)
    with torch.no_grad():
        elsewhere = model(TOKENS, position_ids=3 * torch.arange(24)[None], use_cache=False).logits
    assert (before - elsewhere).abs().max() > 0.02  # else nothing here could fail
    patch(model)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=ROUNDING)
    unpatch(model)
    assert torch.equal(logits(model), before)


def test_a_patched_qwen2_vl_has_the_same_logits():
    if VERSION < (4, 57):
        pytest.skip("the rotary module of Qwen2-VL keeps no configuration, and is refused by name")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own, of the older form
        model, _ = vision_language("rope_parameters" if VERSION >= (5, 0) else "rope_scaling")
    before = logits(model)
    if VERSION >= (5, 4):
        patch(model)
    else:  # where images have no configuration, and the rotation splits components itself
        patch(model.model.language_model, rotation=False)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=ROUNDING)
    unpatch(model)
    assert torch.equal(logits(model), before)
