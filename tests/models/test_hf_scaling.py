"""from_hf_config against the code of transformers: scalings, spellings and old names."""

import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest
from support.configs import BASE, CONTEXT, LLAMA, OLD, SCALINGS, SIZES
from support.inspected import REAL

from rope_xp import from_hf_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def rotary_module(raw):
    kind = transformers.CONFIG_MAPPING[raw["model_type"]]
    model = transformers.MODEL_MAPPING.get(kind, kind)  # which may be of another type
    file = importlib.import_module(model.__module__.replace("configuration_", "modeling_"))
    (rotary,) = (
        member
        for name, member in inspect.getmembers(file, inspect.isclass)
        if name.endswith("RotaryEmbedding") and "Vision" not in name
        if member.__module__ == file.__name__
    )
    return rotary(kind(**copy.deepcopy(raw))), file  # it changes what it is given


def assert_as_transformers(raw):
    result = from_hf_config(raw)
    module, _ = rotary_module(raw)
    for label, rope in result.items() if isinstance(result, dict) else [("", result)]:
        prefix = f"{label}_" if label else ""
        for length in (10, CONTEXT, 3 * CONTEXT):
            more = {"layer_type": label} if label else {}
            module(torch.zeros(1), torch.tensor([[length - 1]]), **more)
            expected = getattr(module, f"{prefix}inv_freq").double().numpy()
            fixed = rope.for_length(length)
            ours = fixed.frequencies(rope.rotary_dim or 2 * len(expected))
            # float32 powers, quotients and products of transformers: a few units of 6e-8
            np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=0, err_msg=label)
            factor = getattr(module, f"{prefix}attention_scaling")
            assert fixed.attention_factor == pytest.approx(factor, rel=1e-12)


LATENT = {"model_type": "deepseek_v3", **SIZES, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(("name", "keys"), SCALINGS)
@pytest.mark.parametrize("raw", [LLAMA, LATENT], ids=["llama", "deepseek_v3"])
def test_from_hf_config_reads_every_spelling_of_a_scaling_as_transformers(raw, name, keys):
    if name == "proportional":
        raw = LLAMA  # head_dim of the other has two meanings
    spellings = [
        {"rope_parameters": {"rope_type": name, "rope_theta": BASE, **keys}},
        {"rope_theta": BASE, "rope_scaling": {"rope_type": name, **keys}},
        {"rope_theta": BASE, "rope_scaling": {"type": name, **keys}},
    ]
    before = copy.deepcopy(spellings)
    rope, *others = (from_hf_config({**raw, **spelling}) for spelling in spellings)
    assert spellings == before
    assert others == [rope, rope]
    assert pickle.loads(pickle.dumps(rope)) == rope
    assert rope.layout == ("half" if raw is LLAMA else "interleaved_to_half")
    for spelling in spellings:
        assert_as_transformers({**raw, **spelling})


PARTS = {name: config.get("text_config", config) for name, config in REAL.items()}
FILES = {k: v for k, v in PARTS.items() if "model_type" in v and "mrope" not in str(v)}


@pytest.mark.parametrize("raw", [*OLD.values(), *FILES.values()], ids=[*OLD, *FILES])
def test_from_hf_config_reads_old_names_and_real_files_as_transformers(raw):
    assert_as_transformers({**SIZES, **raw})


@pytest.mark.parametrize(
    ("model", "sections"),
    [
        ("qwen2_vl_text", [2, 6, 8, 4, 5, 7]),  # contiguous, twice
        ("qwen3_vl_text", [14, 10, 8]),  # interleaved
        ("qwen3_vl_text", [4, 14, 14]),  # more than a third
    ],
)
def test_from_hf_config_with_sections_rotates_as_transformers(model, sections):
    raw = {"model_type": model, **SIZES, "head_dim": 64}
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": BASE, "mrope_section": sections}
    module, file = rotary_module(raw)
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(48, (3, 2, 20), generator=generator)
    q = torch.randn((2, 3, 20, 64), generator=generator)
    expected, _ = file.apply_rotary_pos_emb(q, q, *module(torch.zeros(1), positions))
    result = from_hf_config(raw).rotate(q, positions, axes="bhsd")
    # float32 angles below 48, good to 48 * 6e-8, and |x| below 5
    torch.testing.assert_close(result, expected, rtol=0, atol=5e-5)
