"""Every rotary module of the installed transformers against rope_xp.

Its buffers and rotation are compared with from_hf_config, see census.py, its tables in float64 with
RoPE.table, see census_tables.py; check finds nothing wrong in it.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import transformers
from support import census  # first, as it skips this module where torch or transformers is missing
from support import census_tables as tables

import rope_xp
from rope_xp import RopeError
from rope_xp.integrations.transformers import check

# What a unit that is left may raise: it has no RoPE, or lacks what the census needs.
REFUSALS = (RopeError, LookupError, AttributeError, TypeError, RuntimeError)
# One for each layout and slice, for several components, for two bases, for a factor, learned
# frequencies, and one that is left.
SHORT = (
    *("llama", "gpt_neox", "deepseek_v3", "glm", "llama4", "phi3", "nanochat", "gpt_oss"),
    *("mistral_large4", "gemma3", "gemma4", "qwen2_vl", "ernie4_5_vl_moe", "pixtral", "cohere"),
)


def run_checks(unit: census.Unit) -> dict[str, str]:
    """Return what each check says of a unit, nothing where it is equal."""
    checks = {n: c for n, c in census.CHECKS.items() if census.is_asked(n, unit.name)}
    problems = {}
    for name, function in {**checks, "tables": tables.differences}.items():
        try:
            problems[name] = function(unit)
        except REFUSALS as error:
            problems[name] = repr(error)
    return problems


def compare(directory: str) -> dict[str, dict[str, str]]:
    """Check the units of a directory, and return the problems of each."""
    found = {}
    for unit in census.units(directory):
        problems = found[unit.name] = run_checks(unit)
        of_tables = problems.pop("tables")
        assert bool(of_tables) == (unit.name in tables.LEFT), (unit.name, of_tables)
        if unit.name in census.LEFT:
            assert any(problems.values()), f"{unit.name} is equal by now, and not left any more"
        else:
            assert problems == dict.fromkeys(problems, ""), unit.name
        assert [str(f) for f in check(unit.rotary(unit.config).eval())] == [], unit.name
    return found


@pytest.mark.parametrize("directory", SHORT)
def test_every_unit_is_equal_but_those_that_are_left(directory: str) -> None:
    assert compare(directory)


@pytest.mark.exhaustive
def test_nearly_all_units_are_equal() -> None:
    every = {unit: said for name in census.directories() for unit, said in compare(name).items()}
    for name in ("frequencies", "rotation"):
        texts = [said[name] for said in every.values() if name in said]
        assert len(texts) > 200  # so that a change of the class names does not empty the census
        assert texts.count("") / len(texts) >= 0.97
    assert {*census.LEFT, *census.NOT_CALLED, *census.LEARNED, *tables.LEFT} <= set(every)
    assert len(set(every) - set(tables.LEFT)) > 200


def test_code_that_asks_for_float32_computes_in_float64() -> None:
    """Or tables would be compared in float32."""
    with tables.in_float64():
        numbers = torch.arange(0, 8, 2, dtype=torch.int64).to(dtype=torch.float) / 8
        third = torch.tensor(1.0, dtype=torch.float32).float() / 3
    assert numbers.dtype == third.dtype == torch.float64
    assert third.item() == 1 / 3
    assert torch.ones(1).dtype == torch.float32


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
