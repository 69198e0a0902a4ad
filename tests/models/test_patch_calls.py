"""Calls that a model of transformers takes unpatched are taken by a patched one too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.exhaustive import exhaustive
from support.patched import LOGITS, TOKENS, logits, replaced
from support.small_models import make, multimodal_text, vision_language
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rope_xp import RopeError
from rope_xp.integrations.transformers import patch


@pytest.mark.parametrize(
    "model_type",
    ["qwen2_vl_text", *map(exhaustive, ("qwen2_5_vl_text", "qwen3_vl_text", "qwen3_5_text"))],
)
def test_positions_of_mrope_in_each_shape_that_the_models_expand(
    model_type: str,
) -> None:
    own, model = multimodal_text(model_type), patch(multimodal_text(model_type))
    for shape in ((1, 3, 5), (3, 3, 5), (3, 5), (1, 3, 1)):
        positions = 7 + torch.arange(torch.Size(shape).numel()).reshape(shape)
        tokens = TOKENS[:1].expand(3, -1)[:, : shape[-1]]
        with torch.no_grad():
            before = own(tokens, position_ids=positions).last_hidden_state
            after = model(tokens, position_ids=positions).last_hidden_state
        torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)


def test_generation_that_goes_on_from_a_cache_of_mrope() -> None:
    model, given = vision_language()
    more: dict[str, Any] = {
        "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "disable_compile": True,
    }  # fmt: skip

    def generated() -> torch.Tensor:
        first = model.generate(**given, **more, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, torch.tensor([[9, 10, 11]])], dim=1)
        return model.generate(longer, past_key_values=first.past_key_values, **more)  # type: ignore[no-any-return]  # a tensor

    before = generated()
    patch(model)
    assert torch.equal(generated(), before)


def test_queries_of_the_last_tokens_alone() -> None:
    """As of an assistant that reads the cache of another model: k has more tokens than q."""
    function, ours = replaced("muse_glimmer_assistant", "halves")
    k, tables = torch.randn(2, 3, 7, 8), torch.randn(2, 2, 7, 8)
    q = torch.randn(2, 3, 2, 8)
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(2):
            with torch.no_grad():
                got = ours(q.to(dtype), k.to(dtype), *tables)
            expected = function(q.to(dtype).float(), k.to(dtype).float(), *tables)
            assert [y.dtype for y in got] == [dtype, dtype]
            assert all(map(torch.equal, got, (y.to(dtype) for y in expected)))


@pytest.mark.parametrize(
    "name", ["llama", *map(exhaustive, ("phi3", "gemma3_text", "llama4_text"))]
)
def test_a_trace_of_torch_jit(name: str) -> None:
    model = patch(make(name)).requires_grad_(False)

    def run(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return model(tokens, position_ids=positions, use_cache=False).logits  # type: ignore[no-any-return]  # a tensor

    positions = torch.arange(24)[None]
    # torch calls this deprecated, and warns of each size that becomes a constant.
    with pytest.warns((DeprecationWarning, torch.jit.TracerWarning)):
        traced = torch.jit.trace(run, (TOKENS, positions))
    for other in (positions, 3 * positions, 1_000_000 + positions):
        expected = run(TOKENS, other)
        torch.testing.assert_close(traced(TOKENS, other), expected, rtol=0, atol=LOGITS)


class MadeOfASize(LlamaRotaryEmbedding):
    """A rotary module that no configuration alone makes."""

    def __init__(self, dim: int, config: Any) -> None:
        super().__init__(config)
        self.dim = dim


def test_rotary_modules_that_are_not_made_from_a_configuration() -> None:
    model = make("llama")
    before = logits(model)
    model.model.rotary_emb = MadeOfASize(16, model.config)
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)


def test_rotary_modules_in_which_a_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    kind = type(model.model.rotary_emb)
    original = kind.forward

    def forward(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return original(self, x, position_ids[:, self.first :])

    monkeypatch.setattr(kind, "forward", forward)
    with pytest.raises(RopeError, match=r"its forward fails for 8 positions on a CPU: .*'first'"):
        patch(model)
