"""Models of each supported version of transformers, patched and not; see .ci/torch.

Without tests/support, whose models need a new transformers.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

import rope_xp
from rope_xp.integrations.transformers import patch, unpatch

pytestmark = pytest.mark.exhaustive  # the short suite patches models in tests/models/test_patch.py

VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # large, so that a wrong rotation is plain to see
    "pad_token_id": 0,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "cohere": {},
    "deepseek_v3": LATENT,
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6},
    "gpt_neox": {},
    "llama": {},
    "mistral": {},
    "phi3": {},
    "qwen2": {},
}
SINCE = {"deepseek_v3": (4, 50), "gemma3_text": (4, 50)}
"""The first version with a model type, where 4.48 lacks it."""
TOKENS = torch.arange(24)[None] % 61 + 1
ROUNDING = 2e-5
"""Of float32 logits of up to 30, after attention with large weights."""


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits  # type: ignore[no-any-return]  # a tensor


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_has_the_same_logits(name: str) -> None:
    if SINCE.get(name, (0,)) > VERSION:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **MODELS[name]})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    before = logits(model)
    with torch.no_grad():
        elsewhere = model(TOKENS, position_ids=3 * torch.arange(24)[None], use_cache=False).logits
    assert (before - elsewhere).abs().max() > 0.02  # else nothing here could fail
    patch(model)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=ROUNDING)
    unpatch(model)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gemma3_text"])
def test_a_config_gives_the_frequencies_of_the_model(name: str) -> None:
    if SINCE.get(name, (0,)) > VERSION:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **MODELS[name]})
    model = transformers.AutoModelForCausalLM.from_config(config)
    (inv_freq,) = {
        tuple(buffer.tolist()) for key, buffer in model.named_buffers() if key.endswith(".inv_freq")
    }
    rope = rope_xp.from_hf_config(config)
    head_dim = 8 if name == "deepseek_v3" else 16
    torch.testing.assert_close(
        torch.tensor(inv_freq, dtype=torch.float64),
        torch.from_numpy(rope.frequencies(head_dim).copy()),
        rtol=1e-6,
        atol=0,
    )


def test_qwen2_vl() -> None:
    if VERSION < (4, 57):
        pytest.skip("the rotary module of Qwen2-VL keeps no configuration, and is refused by name")
    sections = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    key = "rope_scaling" if VERSION < (5, 0) else "rope_parameters"
    if key == "rope_scaling":
        sections = {"type": "mrope", "mrope_section": [2, 3, 3]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own, of the older form
        config = transformers.Qwen2VLConfig(
            text_config={**SMALL, key: sections},
            vision_config={
                "depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2
            },
            image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6,
        )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    before = logits(model)
    if VERSION >= (5, 4):
        patch(model)
    else:  # where images have no configuration, and the rotation splits components itself
        patch(model.model.language_model, rotation=False)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=ROUNDING)
    unpatch(model)
    assert torch.equal(logits(model), before)
