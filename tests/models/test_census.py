"""Every rotary module of the installed transformers against rope_xp, see support/census.py.

check finds nothing wrong in any of them. Every model class that has one is patched, or left for a
reason.
"""

import importlib
import inspect
import re

import pytest
from support import census, plans  # first, as they skip this module without transformers
from support.cases import slow

import rope_xp
from rope_xp import RopeError
from rope_xp.integrations import _rotary
from rope_xp.integrations.transformers import check, patch, unpatch

torch, transformers = census.torch, census.transformers

# What a unit that is left may raise: it has no RoPE, or lacks what the census needs.
REFUSALS = (RopeError, LookupError, AttributeError, TypeError, RuntimeError)
# One for each layout and slice, for several components, for two bases, for a factor, learned
# frequencies, and one that is left.
SHORT = (
    *("deepseek_v3", "llama4", "nanochat", "gemma3", "ernie4_5_vl_moe"),
    *map(slow, ("glm", "phi3", "mistral_large4", "pixtral")),
)


def find_problems(unit):
    problems = {}
    for name, find_difference in census.CHECKS.items():
        if unit.name not in census.SKIPPED[name]:
            try:
                problems[name] = find_difference(unit)
            except REFUSALS as error:
                problems[name] = repr(error)
    return problems


def compare(directory):
    problems_by_unit = {}
    for unit in census.list_units(directory):
        problems = problems_by_unit[unit.name] = find_problems(unit)
        if unit.name in census.LEFT:
            assert any(problems.values()), f"{unit.name} is equal by now, and not left any more"
        else:
            assert problems == dict.fromkeys(problems, ""), unit.name
    return problems_by_unit


@pytest.mark.parametrize("directory", SHORT)
def test_rotary_modules_of_a_model_are_equal_or_left_and_pass_the_check(directory):
    assert compare(directory)
    for unit in census.list_units(directory):
        findings = check(unit.rotary(unit.config).eval())
        assert [str(f) for f in findings if f.kind != "not checked"] == [], unit.name


@pytest.mark.slow
def test_rotary_modules_of_all_models_are_nearly_all_equal():
    """In one test, as it takes longer to import their code than to compare it."""
    every = {name: x for d in census.list_directories() for name, x in compare(d).items()}
    for name in ("frequencies", "rotation"):
        texts = [problems[name] for problems in every.values() if name in problems]
        assert len(texts) > 200  # so that a change of the class names does not empty the census
        assert texts.count("") / len(texts) >= 0.97
    assert {*census.LEFT, *census.NOT_CALLED, *census.LEARNED} <= set(every)


@pytest.mark.parametrize("model", ["gptj", "codegen", "roformer"])
def test_models_with_a_table_of_sinusoids_rotate_as_their_rope(model):
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


# --- patch ---------------------------------------------------------------------------------------

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


def models(directory):
    for path in sorted((census.MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if hasattr(kind, "config_class") and kind.__module__ == module.__name__:
                if re.search("PreTr|For[A-Z]", name):  # which hold another, and a head
                    continue
                # Of few layers, if the configuration fits them.
                model = build(kind, True) or build(kind, False)
                if model and dict(_rotary.rotary_modules(model)):
                    yield model


def build(kind, is_short):
    """Return a model of some layers, or those of its default; None if it cannot be built."""
    try:
        config = kind.config_class(**census.MENDED.get(kind.config_class.__name__, {}))
        if is_short:
            for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
                plans.shorten(part)
        with torch.device("meta"):
            model = kind._from_config(config)
        for name, rotary in list(_rotary.rotary_modules(model)):
            if name and hasattr(rotary, "config"):
                model.set_submodule(name, type(rotary)(rotary.config))
    except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # made for another configuration, or from parts
    return model


def patch_all(directory):
    patched = []
    for model in models(directory):
        classes = [type(module) for module in model.modules()]
        try:
            patch(model)
            message = ""
        except RopeError as error:
            message = str(error)
        else:
            assert [type(module) for module in model.modules()] != classes
            unpatch(model)
        assert [type(module) for module in model.modules()] == classes
        assert not message or re.search("|".join(UNPATCHED), message), (type(model), message)
        patched.append(not message)
    return patched


# A directory for each way to rotate, and for each reason to leave a class.
SOME = "ernie4_5_vl_moe falcon gemma4 glm4v gpt_oss llama4 moshi neucodec persimmon phi4_multimodal"
SOME += " pixtral qwen3_omni_moe sam3 zamba2"
NONE = "bamba clvp dinov3_vit edgetam_video esm mistral_large4 nanochat seamless_m4t"
LATER = map(slow, f"{SOME} {NONE}".split())


@pytest.mark.parametrize("directory", ["llama", "qwen2_vl", "lasr", *LATER])
def test_classes_of_a_model_are_patched_or_left_for_a_reason(directory):
    assert any(patch_all(directory)) == (directory not in NONE.split())


@pytest.mark.slow
def test_classes_of_all_models_are_patched_and_have_their_plan():
    """In one test, as it takes longer to import their code than to compare it."""
    patched, planned = [], []
    for directory in census.list_directories():
        patched.append(patch_all(directory))
        planned += plans.list_equal(directory)
    assert sum(map(any, patched)) > 165
    assert len(planned) >= 150  # models and variants that run without images and sound
