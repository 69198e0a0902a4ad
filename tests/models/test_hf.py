"""from_hf_config without transformers: what a configuration may be, and the RoPE that it gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.configs import BASE, CONTEXT, LLAMA, SIZES, YARN, longrope

from rope_xp import RoPE, RopeConfigError, RopeError, from_hf_config, plan
from rope_xp._arguments.fields import LAYOUTS
from rope_xp.hf._models import MODELS
from rope_xp.scaling import NTK, DynamicNTK, Linear

PLAIN = {"rope_theta": 1e4, "head_dim": 64}
HALF, INTERLEAVED = (RoPE(base=1e4, layout=layout) for layout in ("half", "interleaved"))
LATENT = {"qk_rope_head_dim": 64, "rope_theta": 1e4}
LATENT_ROPE = RoPE(base=1e4, layout="interleaved_to_half", rotary_dim=64, rotary_offset=-64)
SECTIONS = {"type": "mrope", "mrope_section": [8, 12, 12]}
QWEN = {"model_type": "qwen2_vl", **SIZES, "rope_theta": BASE, "rope_scaling": SECTIONS}
QWEN_PART = {**QWEN, "model_type": "qwen2_vl_text", "rope_scaling": SECTIONS | {"type": "default"}}
QWEN_ROPE = RoPE(base=BASE, layout="half", position_axes=(0,) * 8 + (1,) * 12 + (2,) * 12)
OMNI = {"model_type": "qwen2_vl", "text_config": QWEN_PART, "vision_config": {}}
FULL = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
FULL_ROPE = RoPE(base=777.0, layout="half", scaling=Linear(2.0))
GPTJ = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
GLM = {"model_type": "glm4", "hidden_size": 5120, "num_attention_heads": 64}
LINEAR = {"rope_type": "linear", "factor": 8.0}
BY_LAYER = {"full_attention": FULL, "sliding_attention": None}
TYPES = ["full_attention", "sliding_attention"]
NO_LATENT = {"kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0}
OCR = {**NO_LATENT, "hidden_size": 1280, "num_hidden_layers": 12, "num_attention_heads": 10}
OCR |= {"num_key_value_heads": 10, "rope_theta": 1e4}
DBRX = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40}
DBRX |= {"max_seq_len": 32768, "attn_config": {"kv_n_heads": 8, "rope_theta": 500000}}
EVO_2 = {"use_interpolated_rotary_pos_emb": True, "rotary_emb_scaling_factor": 8.0}


def unrotated(layout):
    return {"sliding_attention": RoPE(base=1e4, layout=layout), "full_attention": None}


CONFIGS = [
    (QWEN, QWEN_ROPE),
    (QWEN_PART, QWEN_ROPE),
    ({"model_type": "qwen2_5_omni", "thinker_config": OMNI}, QWEN_ROPE),
    # a whole model in one dictionary is read as its text
    (QWEN | {"vision_config": {"patch_size": 14}, "spatial_merge_size": 2}, QWEN_ROPE),
    (  # a layer type without positions
        {**LLAMA, "rope_parameters": BY_LAYER, "layer_types": TYPES},
        {"full_attention": FULL_ROPE, "sliding_attention": None},
    ),
    ({"model_type": "kimi_k2", **LATENT}, LATENT_ROPE),
    ({"model_type": "unlimited_ocr", "language_config": OCR}, HALF),
    ({**GPTJ, "rotary_dim": None}, INTERLEAVED),
    # a missing head_dim
    (GLM, replace(INTERLEAVED, rotary_dim=64)),
    ({"model_type": "phi", "hidden_size": 2560}, replace(HALF, rotary_dim=40)),
    # a share that is whole, of a model that reads none
    ({**PLAIN, "model_type": "llama", "rotary_pct": 1.0}, HALF),
    ({**PLAIN, "model_type": "llama", "rotary_dim": 64}, replace(HALF, rotary_dim=64)),
    ({**PLAIN, "model_type": "phi3", "rotary_dim": 32}, replace(HALF, rotary_dim=32)),
    # only sliding layers rotate; those of EXAONE all do without a window
    ({**PLAIN, "model_type": "cohere2", "sliding_window": None}, unrotated("interleaved")),
    ({**PLAIN, "model_type": "exaone4"}, unrotated("half")),
    ({**PLAIN, "model_type": "exaone4", "sliding_window": None}, HALF),
    # rope_scaling wins over rope_parameters
    ({**LLAMA, "rope_scaling": LINEAR, "rope_parameters": FULL}, replace(HALF, scaling=Linear(8))),
    # an alpha is a factor for every length
    ({**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": 8.0}}, replace(HALF, scaling=NTK(8.0))),
    (
        {**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": None, "factor": 2.0}},
        replace(HALF, scaling=DynamicNTK(2.0, CONTEXT)),
    ),
    (  # a part without a type is of the family of the whole
        {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "rope_scaling": LINEAR}},
        {
            "full_attention": RoPE(base=1e6, layout="half", scaling=Linear(8.0)),
            "sliding_attention": HALF,
        },
    ),
    (DBRX, RoPE(base=5e5, layout="half")),
    # a null base at top level is no base
    ({**LLAMA, "rope_theta": None, "rope_scaling": FULL}, FULL_ROPE),
    # keys of files that change no rotation: of Yarn-Llama-2, Ministral 3 and vLLM
    *(
        ({**LLAMA, "rope_scaling": {**LINEAR, **more}}, replace(HALF, scaling=Linear(8.0)))
        for more in (
            {"finetuned": True, "attn_factor": 1, "extrapolation_factor": 1},
            {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144},
            {"interleaved": True, "apply_yarn_scaling": True, "factr": None},
        )
    ),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS)
def test_from_hf_config_gives_the_rope_of_the_model(config, expected):
    assert from_hf_config(config) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"head_dim": 64, "rotary_emb_base": 1e4, "rotary_emb_fraction": 0.5}, {"rotary_dim": 32}),
        ({"rotary_emb_base": 1e4, **EVO_2}, {"scaling": Linear(8.0)}),
        ({"language_config": OCR}, {}),
    ],
)
def test_from_hf_config_with_a_layout_reads_keys_of_unknown_types(keys, expected):
    rope = from_hf_config({"model_type": "mine", **keys}, layout="half")
    assert rope == replace(HALF, **expected)


def test_from_hf_config_ignores_a_position_embedding_that_modernbert_does_not_read():
    modernbert = {"model_type": "modernbert"}
    absolute = modernbert | {"position_embedding_type": "absolute"}
    assert from_hf_config(absolute) == from_hf_config(modernbert)


def test_plan_reads_the_sizes_of_other_repositories():
    dbrx, ocr = plan(DBRX), plan({"model_type": "unlimited_ocr", "language_config": OCR})
    assert (len(dbrx), dbrx[0].kv_heads, dbrx[0].head_dim) == (40, 8, 128)
    assert (len(ocr), ocr[0].kv_heads, ocr[0].head_dim) == (12, 10, 128)


TOWERS = [name.removesuffix("_vision") for name in MODELS if name.endswith("_vision")]
TOWERS.remove("granite4")  # whose granite4_vision is a language model


@pytest.mark.parametrize("name", TOWERS)
def test_from_hf_config_of_a_tower_with_the_type_of_the_whole_reads_the_tower(name):
    tower = {"hidden_size": 1024, "embed_dim": 1024, "num_heads": 16, "patch_size": 16}
    expected = from_hf_config({**tower, "model_type": f"{name}_vision"})
    assert len({*expected.position_axes}) == (3 if name == "minimax_m3_vl" else 2)
    if name in MODELS:
        assert from_hf_config({**tower, "model_type": name}) == expected
    if name in MODELS and MODELS[name].sections:
        del tower["patch_size"]
        merged = {**tower, "spatial_merge_size": 2, "model_type": name}
        assert from_hf_config(merged) == expected
        with pytest.raises(RopeConfigError, match="vocab_size, and of a vision tower, patch_size"):
            from_hf_config({**merged, "patch_size": 16, "vocab_size": 9})


def rope_of(keys):
    rope = from_hf_config({**LLAMA, **keys})
    assert isinstance(rope, RoPE)
    return rope


def test_from_hf_config_scales_the_softmax_of_latent_attention_alone():
    keys = {"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    assert rope_of(keys).softmax_scale == 1.0
    latent = rope_of({**keys, "qk_rope_head_dim": 64})
    assert latent.softmax_scale == pytest.approx((0.1 * np.log(8.0) + 1.0) ** 2)
    assert latent.attention_factor == rope_of(keys).attention_factor == 1.0
    magnitudes = {"short_mscale": 1.25, "long_mscale": 1.25, "type": "longrope"}
    scaled = {"original_max_position_embeddings": 1024, **longrope(32), **magnitudes}
    assert rope_of({"model_type": "phimoe", "rope_scaling": scaled}).attention_factor == 1.25


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mine", "rope_theta": 1e4}, "'mine' is not known"),
        ({"model_type": "mine", **LATENT}, "'mine' is not known"),
        ({"rope_theta": 1e4}, "model_type is missing"),
    ],
)
def test_from_hf_config_never_guesses_the_layout_of_unknown_types(config, message):
    with pytest.raises(RopeConfigError, match=f"{message}.*pass layout="):
        from_hf_config(config)
    for layout in LAYOUTS:
        latent = {"rotary_dim": 64, "rotary_offset": -64} if "qk_rope_head_dim" in config else {}
        expected = RoPE(base=1e4, layout=layout, **latent)
        assert from_hf_config(config, layout=layout) == expected
        # even where the table says another, as for weights in Meta's own order
        for known in ({"model_type": "llama"}, {"model_type": "youtu", "rope_interleave": False}):
            assert from_hf_config({**PLAIN, **known}, layout=layout).layout == layout
    with pytest.raises(RopeError, match="layout must be one of .* got 'neox'"):
        from_hf_config(config, layout="neox")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dynamic_ntk", True),
        ("rope_local_theta", 1e4),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("rope_interleave", False),
        ("attn_config", {"rope": True, "rope_hf_config": {"type": "linear", "factor": 8.0}}),
    ],
)
def test_from_hf_config_and_plan_warn_of_keys_that_nothing_reads(key, value):
    config = {"model_type": "mine", **PLAIN, "num_hidden_layers": 1, "num_attention_heads": 2}
    for read in (from_hf_config, plan):
        with pytest.warns(UserWarning, match=f"nothing reads ({key}|rope_hf_config) = "):
            read({**config, key: value}, layout="half")
    from_hf_config({**config, key: None}, layout="half")


def test_from_hf_config_takes_a_dict_a_path_or_an_object(tmp_path):
    raw = {**LLAMA, "rope_theta": BASE}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    configuration = type("Configuration", (), {"to_dict": lambda self: raw})()
    for config in (raw, file, str(file), tmp_path, str(tmp_path), configuration):
        assert from_hf_config(config) == RoPE(base=BASE, layout="half")
