"""Every rotary module, and every class that has one, of the installed transformers.

Each is equal or left, see support/census.py, and each class is patched, or left for a reason.
"""

import importlib
import re

import pytest
from support import census, plans  # first, as they skip this module without transformers

import rope_xp
from rope_xp import RopeError
from rope_xp.integrations import _rotary
from rope_xp.integrations.transformers import check, patch, unpatch

torch, transformers = census.torch, census.transformers


def compare(directory):
    problems_by_unit = {}
    for unit in census.list_units(directory):
        problems = problems_by_unit[unit.name] = census.find_problems(unit)
        if unit.kind in census.LEFT:
            assert any(problems.values()), f"{unit.name} is equal by now, and not left any more"
        else:
            assert problems == dict.fromkeys(problems, ""), unit.name
        findings = check(unit.rotary(unit.config).eval())
        assert [str(f) for f in findings if f.kind != "not checked"] == [], unit.name
    return problems_by_unit


# One for each layout and slice, for several components, for two bases, and one that is left.
@pytest.mark.parametrize(
    "directory", ["deepseek_v3", "llama4", "nanochat", "gemma3", "ernie4_5_vl_moe"]
)
def test_rotary_modules_of_a_model_are_equal_or_left_and_pass_the_check(directory):
    assert compare(directory)


@pytest.mark.slow
def test_rotary_modules_of_all_models_are_nearly_all_equal():
    """In one test, as it takes longer to import their code than to compare it."""
    every = {name: x for d in census.list_directories() for name, x in compare(d).items()}
    for name in ("frequencies", "rotation"):
        texts = [problems[name] for problems in every.values() if name in problems]
        assert len(texts) > 200  # so that a change of the class names does not empty the census
        assert texts.count("") / len(texts) >= 0.97
    kinds = {name.split(".")[-1] for name in every}
    assert {*census.LEFT, *census.NOT_CALLED, *census.LEARNED} <= kinds


@pytest.mark.parametrize("model", ["gptj", "codegen", "roformer"])
def test_from_hf_config_rotates_as_models_with_a_table_of_sinusoids(model):
    config = transformers.AutoConfig.for_model(model)
    file = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    head_dim = config.hidden_size // config.num_attention_heads
    q = torch.randn((1, 48, 2, head_dim), generator=torch.Generator().manual_seed(0))
    if model == "roformer":
        table = file.RoFormerSinusoidalPositionalEmbedding(48, head_dim)
        table.weight.data = table.create_weight()
        rotate = file.RoFormerSelfAttention.apply_rotary_position_embeddings
        by_heads = q.transpose(1, 2)
        expected = rotate(table(q.shape[:2])[None, None], by_heads, by_heads)[0].transpose(1, 2)
    else:
        part, rest = q.split([config.rotary_dim, head_dim - config.rotary_dim], -1)
        sin, cos = file.create_sinusoidal_positions(48, config.rotary_dim)[None].chunk(2, -1)
        expected = torch.cat([file.apply_rotary_pos_emb(part, sin, cos), rest], dim=-1)
    rotated = rope_xp.from_hf_config(config).rotate(q)
    torch.testing.assert_close(rotated, expected, rtol=0, atol=census.ROTATION)


UNPATCHED = (
    "has no configuration with a RoPE",  # rotary modules that are made of sizes
    "has no rotary embedding that rope_xp knows",  # sinusoids, which are added
    "its forward takes no position_ids",  # but images
    "found no function that rotates",  # of the layers that there are by default
    "it does not rotate in any known layout",  # EdgeTAM, whose keys are in groups
    "its buffer holds",  # ERNIE 4.5 VL, MiniMax-M3, MusicFlamingo
    "must sum to",  # sections of M-RoPE that do not fit the default head
    "cannot rotate ",
    *("it rotates two slices", "its frequencies are learned", "it rotates by the negative angle"),
)
"""Why a class is not patched."""


def patch_all(directory):
    """Return, of each class with rotary modules, whether patch takes it."""
    patched = []
    for model in filter(None, map(plans.build_model, plans.list_classes(directory))):
        rotary_modules = dict(_rotary.rotary_modules(model))
        for name, rotary in rotary_modules.items():
            if name and hasattr(rotary, "config"):
                model.set_submodule(name, type(rotary)(rotary.config))  # with values
        if not rotary_modules:
            continue
        classes = [type(module) for module in model.modules()]
        message = ""
        try:
            patch(model)
        except RopeError as error:
            message = str(error)
        else:
            assert [type(module) for module in model.modules()] != classes
            unpatch(model)
        assert [type(module) for module in model.modules()] == classes
        assert not message or re.search("|".join(UNPATCHED), message), (type(model), message)
        patched.append(not message)
    return patched


@pytest.mark.parametrize("directory", ["llama", "qwen2_vl", "lasr"])
def test_patch_takes_classes_of_a_model(directory):
    assert any(patch_all(directory))


@pytest.mark.slow
def test_patch_and_plan_take_classes_of_all_models_or_refuse_them_for_a_reason():
    """In one test, as it takes longer to import their code than to compare it."""
    patched, planned = [], []
    for directory in census.list_directories():
        patched.append(patch_all(directory))
        planned += plans.list_equal(directory)
    assert sum(map(any, patched)) > 165
    assert len(planned) >= 150  # models and variants that run without images and sound
