"""Every rotary module of the installed transformers against from_hf_config; see census.py."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from support import census  # first, as it skips this module where torch or transformers is missing
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RopeError

# What a unit that is left may raise: it has no RoPE, or what census.py asks of it is not there.
REFUSALS = (RopeError, LookupError, AttributeError, TypeError, RuntimeError)

# One for each layout and slice, for several components, for two bases, learned
# frequencies, and one that is left.
SHORT = (
    *("llama", "gptj", "gpt_neox", "deepseek_v3", "glm", "llama4", "phi3", "nanochat"),
    *("mistral_large4", "gemma3", "gemma4", "qwen2_vl", "qwen3_vl", "ernie4_5_vl_moe", "pixtral"),
)


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Have transformers keep to itself that some default configurations are odd."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@functools.cache
def results(directory: str) -> dict[str, dict[str, str]]:
    """Return what each check says of each unit."""
    return {
        unit.name: {
            name: _said(name, unit) for name in census.CHECKS if census.is_asked(name, unit.name)
        }
        for unit in census.units(directory)
    }


def _said(check: str, unit: Any) -> str:
    try:
        return census.CHECKS[check](unit)
    except REFUSALS as error:
        return repr(error)


@pytest.mark.parametrize(
    "directory", [d if d in SHORT else exhaustive(d) for d in census.directories()]
)
def test_every_unit_is_equal_but_those_that_are_left(directory: str) -> None:
    for unit, said in results(directory).items():
        if unit in census.LEFT:
            assert any(said.values()), f"{unit} is equal by now, and not left any more"
        else:
            assert said == dict.fromkeys(said, ""), unit


@pytest.mark.exhaustive
def test_nearly_all_units_are_equal() -> None:
    every = {unit: said for name in census.directories() for unit, said in results(name).items()}
    for check in ("frequencies", "rotation"):
        said = [texts[check] for texts in every.values() if check in texts]
        assert len(said) > 200  # so that a change of the class names does not empty the census
        assert said.count("") / len(said) >= 0.97
    assert {*census.LEFT, *census.NOT_CALLED, *census.LEARNED} <= set(every)


def sinusoids(model: str, file: Any, config: Any, q: torch.Tensor) -> torch.Tensor:
    """Return q, of (batch, tokens, heads, head_dim), as the code of three old models rotates it."""
    if model == "roformer":
        table = file.RoFormerSinusoidalPositionalEmbedding(q.shape[1], q.shape[-1])
        table.weight.data = table.create_weight()
        by_heads = q.transpose(1, 2)
        rotate = file.RoFormerSelfAttention.apply_rotary_position_embeddings
        return rotate(table(q.shape[:2])[None, None], by_heads, by_heads)[0].transpose(1, 2)
    part, rest = q[..., : config.rotary_dim], q[..., config.rotary_dim :]
    sin, cos = file.create_sinusoidal_positions(q.shape[1], config.rotary_dim)[None].chunk(2, -1)
    return torch.cat([file.apply_rotary_pos_emb(part, sin, cos), rest], dim=-1)


@pytest.mark.parametrize("model", ["gptj", "codegen", "roformer"])
def test_models_with_a_table_of_sinusoids(model: str) -> None:
    config = transformers.AutoConfig.for_model(model)
    file = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    head_dim = config.hidden_size // config.num_attention_heads
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((1, census.TOKENS, 2, head_dim), generator=generator)
    found = rope_xp.from_hf_config(config).rotate(q)
    expected = sinusoids(model, file, config, q)
    torch.testing.assert_close(found, expected, rtol=0, atol=census.ROTATION)
