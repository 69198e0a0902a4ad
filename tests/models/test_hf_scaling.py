"""from_hf_config against the code of transformers: scalings, spellings and old names."""

import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest
from support.configs import BASE, CONTEXT, LLAMA, SCALINGS, SIZES, YARN, list_spellings, longrope
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


@pytest.mark.parametrize(
    ("model", "name", "keys"),
    [
        (model, name, keys)
        for model in ("llama", "qwen2", "deepseek_v3")
        for name, keys in SCALINGS
        if (model, name) != ("deepseek_v3", "proportional")  # its head_dim has two meanings
    ],
)
def test_every_scaling_in_every_spelling_is_that_of_transformers(model, name, keys):
    raw = {"model_type": model, **SIZES}
    if model == "deepseek_v3":
        raw["qk_rope_head_dim"] = 64
    ropes = []
    for spelling in list_spellings(name, keys).values():
        before = copy.deepcopy(spelling)
        assert_as_transformers({**raw, **spelling})
        ropes.append(from_hf_config({**raw, **spelling}))
        assert spelling == before
    assert ropes[1:] == ropes[:-1]
    assert pickle.loads(pickle.dumps(ropes[0])) == ropes[0]
    assert ropes[0].base == BASE
    assert ropes[0].layout == ("interleaved_to_half" if model == "deepseek_v3" else "half")


LAYERS = {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2}
LINEAR, TRAINED = {"rope_type": "linear", "factor": 8.0}, "original_max_position_embeddings"
GEMMA3 = {"model_type": "gemma3_text", **LAYERS}
GEMMA3_BASES = {**GEMMA3, "rope_theta": 7e5, "rope_local_base_freq": 3e4}
ODD = {"model_type": "stablelm", "partial_rotary_factor": 0.3, "head_dim": 50}
PHI3 = {"model_type": "phi3", **SIZES, TRAINED: 1024}
BASE_777 = {**LLAMA, "rope_theta": 777.0}
OLD = {
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 777},
    "gpt_neox, all default": {"model_type": "gpt_neox"},
    "stablelm": {"model_type": "stablelm", "partial_rotary_factor": 0.5, "rope_theta": 777.0},
    "odd": ODD,
    "odd, linear": {**ODD, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "phi3 su": {**PHI3, "rope_scaling": {"type": "su", **longrope(32), TRAINED: 1024}},
    "phi3 yarn": {**PHI3, "rope_scaling": {"type": "yarn", **longrope(32)}},
    "phi3 partial": {
        **PHI3, "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", **longrope(24)},
    },
    "phi3, the top level wins": {
        **PHI3, "rope_scaling": {"type": "longrope", **longrope(32), TRAINED: 2048},
    },
    "gemma3": {**GEMMA3_BASES, "rope_scaling": LINEAR},
    "gemma3, all default": GEMMA3,
    "gemma3, one layer type": {
        **GEMMA3, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}
    },
    "gemma3, a scaling without a base": {**GEMMA3, "rope_parameters": {"full_attention": LINEAR}},
    "gemma3, a scaling whose base is elsewhere": {
        **GEMMA3_BASES, "rope_parameters": {"full_attention": LINEAR},
    },
    "gemma3, its own original length": {
        **GEMMA3, TRAINED: 999,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, **YARN},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "modernbert": {
        "model_type": "modernbert", "global_rope_theta": 9e4, "local_rope_theta": 2e4,
        "rope_scaling": LINEAR,
    },
    "olmo3": {"model_type": "olmo3", **LAYERS, "rope_scaling": {"rope_type": "yarn", **YARN}},
    "deepseek_v4": {
        "model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64,
        "rope_theta": 9e3, "compress_rope_theta": 2e5, "rope_scaling": {"type": "yarn", **YARN},
    },
    "step3p5": {
        "model_type": "step3p5", **LAYERS, "head_dim": 128, "rope_theta": [5e6, 1e4] * 2,
        "partial_rotary_factors": [0.5, 1.0] * 2, "rope_scaling": LINEAR,
    },
    "ultrabert": {"model_type": "ultrabert", **LAYERS, "rope_theta": [5e6, 2e4] * 2},
    "hunyuan": {
        "model_type": "hunyuan_v1_dense", "head_dim": 64, "rope_theta": 777.0,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0},
    },
    "sarvam": {
        "model_type": "sarvam_mla", "head_dim": 576, "qk_rope_head_dim": 64, "rope_theta": 1e4,
        "rope_scaling": {"type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN},
    },
    "laguna, a share of the head elsewhere": {
        "model_type": "laguna", **LAYERS, "head_dim": 64, "partial_rotary_factor": 0.25,
    },
    "llama, a base in both places": {
        **BASE_777, "rope_parameters": {"rope_type": "default", "rope_theta": 999.0},
    },
    "apertus, a base elsewhere": {**BASE_777, "model_type": "apertus"},
    "no dictionary is taken for an empty one": {
        **LLAMA, "rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 777.0},
    },
}  # fmt: skip


PARTS = {name: config.get("text_config", config) for name, config in REAL.items()}
FILES = {k: v for k, v in PARTS.items() if "model_type" in v and "mrope" not in str(v)}


@pytest.mark.parametrize("raw", [*OLD.values(), *FILES.values()], ids=[*OLD, *FILES])
def test_old_names_and_real_files_give_the_frequencies_of_transformers(raw):
    assert_as_transformers({**SIZES, **raw})


MROPE = {
    "contiguous, twice": ("qwen2_vl_text", [2, 6, 8, 4, 5, 7]),
    "interleaved": ("qwen3_vl_text", [14, 10, 8]),
    "interleaved, more than a third": ("qwen3_vl_text", [4, 14, 14]),
}


@pytest.mark.parametrize(("model", "sections"), MROPE.values(), ids=MROPE)
def test_rope_of_mrope_rotates_as_transformers(model, sections):
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
