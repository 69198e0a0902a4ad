"""from_hf_config and plan of configurations as they are published; values were computed by hand."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from rope_xp import RopeConfigError, from_hf_config, plan
from rope_xp.hf._models import MODELS

NO_LATENT = {
    "hidden_size": 1280,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "num_hidden_layers": 12,
    "kv_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "max_position_embeddings": 32768,
}
LATENT = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "num_attention_heads": 2, "rope_theta": 1e4}


def powers(base, dim):
    return base ** (-np.arange(0, dim, 2) / dim)


# --- vision towers -------------------------------------------------------------------------------

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
        for keys in ({"spatial_merge_size": 2}, {"patch_size": 16, "temporal_patch_size": 2}):
            sizes = {k: v for k, v in tower.items() if k != "patch_size"}
            assert from_hf_config({**sizes, **keys, "model_type": name}) == expected
        with pytest.raises(RopeConfigError, match="vocab_size, and of a vision tower, patch_size"):
            from_hf_config({**tower, "model_type": name, "vocab_size": 9})


def test_from_hf_config_of_a_tower_without_a_rope_refuses_it():
    tower = {"model_type": "cosmos3_edge", "patch_size": 16, "hidden_size": 1152}
    with pytest.raises(RopeConfigError, match="'cosmos3_edge_vision' has no rotary embedding"):
        from_hf_config(tower)


def test_from_hf_config_of_a_flat_whole_model_reads_the_text():
    whole = {"model_type": "qwen2_vl", "head_dim": 128, "vision_config": {"patch_size": 14}}
    assert len({*from_hf_config(whole).position_axes}) == 3


# --- null, and 0 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_theta": None}, "rope_theta is null; set it to the base"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": None}},
            "is null. Assign",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "rope_theta": 5e5},
            "rope_theta is null, and rope_theta = 500000.0 at top level is not read",
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": None},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "rope_parameters.full_attention.rope_theta is null",
        ),
    ],
)
def test_from_hf_config_takes_no_null_for_a_base(keys, message):
    config = {"model_type": "llama", "head_dim": 128, **keys}
    with pytest.raises(RopeConfigError, match=re.escape(message)):
        from_hf_config(config)
    assert (
        from_hf_config(
            {**config, "model_type": "llama", **dict.fromkeys(keys)} | {"rope_theta": 5e5}
        ).base
        == 5e5
    )


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [("unlimited_ocr", None), ("deepseek_ocr2", None), ("deepseek_vl_v2", "half")],
)
def test_sizes_of_0_mean_no_latent_attention(model_type, layout):
    config = {"model_type": model_type, "language_config": NO_LATENT}
    layers = plan(config, layout=layout)
    for rope in (from_hf_config(config, layout=layout), layers[-1].rope):
        np.testing.assert_allclose(rope.frequencies(128), powers(1e4, 128), rtol=1e-15)
    assert (len(layers), layers[0].head_dim, layers[0].kv_heads) == (12, 128, 10)


def test_a_size_of_0_with_latent_attention_is_refused():
    with pytest.raises(RopeConfigError, match="qk_rope_head_dim must be positive"):
        from_hf_config({"model_type": "deepseek_v3", **NO_LATENT, "kv_lora_rank": 512})


# --- keys elsewhere, and keys that nothing reads -------------------------------------------------


def test_from_hf_config_reads_the_base_of_attn_config():
    dbrx = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40}
    dbrx |= {"max_seq_len": 32768, "attn_config": {"kv_n_heads": 8, "rope_theta": 500000}}
    np.testing.assert_allclose(from_hf_config(dbrx).frequencies(128), powers(5e5, 128), rtol=1e-15)
    assert (plan(dbrx)[0].kv_heads, plan(dbrx)[0].head_dim) == (8, 128)


def test_from_hf_config_of_mpt_reads_what_its_attention_has():
    attention = {"rope": True, "alibi": False, "rope_theta": 2e4, "rope_impl": "hf"}
    attention["rope_hf_config"] = {"type": "linear", "factor": 4.0}
    mpt = {"model_type": "mpt", "d_model": 512, "n_heads": 4, "max_seq_len": 2048}
    rope = from_hf_config({**mpt, "attn_config": attention}, layout="half")
    np.testing.assert_allclose(rope.frequencies(128), powers(2e4, 128) / 4, rtol=1e-15)
    for keys, message in (
        ({"rope": False, "alibi": True}, "attn_config.rope is false"),
        ({"alibi": True, "rope_theta": 1e4}, "has alibi, and so no rotary embedding"),
    ):
        with pytest.raises(RopeConfigError, match=message):
            from_hf_config({**mpt, "attn_config": keys}, layout="half")


def test_from_hf_config_divides_the_positions_of_evo_2():
    evo = {"model_type": "stripedhyena", "hidden_size": 4096, "num_attention_heads": 32}
    evo |= {"rotary_emb_base": 10000, "use_interpolated_rotary_pos_emb": True}
    rope = from_hf_config({**evo, "rotary_emb_scaling_factor": 128}, layout="half")
    np.testing.assert_allclose(rope.frequencies(128), powers(1e4, 128) / 128, rtol=1e-15)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dynamic_ntk", True),
        ("rope_local_theta", 1e4),
        ("dual_chunk_attention_config", {"chunk_size": 262144}),
        ("rope_interleave", False),
    ],
)
def test_from_hf_config_warns_of_keys_that_nothing_reads(key, value):
    config = {"model_type": "mine", "head_dim": 64, "rope_theta": 1e4, key: value}
    for read in (from_hf_config, plan):
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 2}
        with pytest.warns(UserWarning, match=f"nothing reads {key} = "):
            read({**config, **sizes}, layout="half")
    from_hf_config({**config, key: None}, layout="half")


def test_from_hf_config_reads_a_fraction_by_the_name_of_flash_attn():
    keys = {"head_dim": 128, "rotary_emb_base": 1e4, "rotary_emb_fraction": 0.5}
    assert from_hf_config({"model_type": "mine", **keys}, layout="half").rotary_dim == 64


def read_code(name):
    """Return the code of a model type, which may be another's; None if transformers has none."""
    transformers = pytest.importorskip("transformers")
    mapping = transformers.CONFIG_MAPPING
    kind = next((mapping[n] for n in (f"{name}_text", name) if n in mapping), None)
    if kind is None:
        return None
    files = [*Path(inspect.getfile(kind)).parent.glob("modeling_*.py")]
    files = files or [Path(inspect.getfile(transformers.MODEL_MAPPING[kind]))]
    return "".join(path.read_text("utf-8") for path in files)


@pytest.mark.parametrize(
    "name", [n for n, m in MODELS.items() if m.layout == "interleaved_to_half"]
)
def test_rope_interleave_is_read_where_the_code_of_transformers_reads_it(name):
    if (code := read_code(name)) is None:
        pytest.skip(f"transformers has no code of {name}")
    reads = "config.rope_interleave" in code
    config = {"model_type": name, **LATENT, "rope_interleave": False}
    ropes = from_hf_config(config)
    ropes = [*ropes.values()] if isinstance(ropes, dict) else [ropes]
    assert {rope.layout for rope in ropes} == {"half" if reads else "interleaved_to_half"}


# --- a share of the head -------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["partial_rotary_factor", "rotary_pct", "rotary_dim"])
def test_a_share_that_the_code_does_not_read_is_refused(key):
    config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}
    share = 32 if key == "rotary_dim" else 0.5
    with pytest.raises(RopeConfigError, match="is not read by the code of model_type 'llama'"):
        from_hf_config({**config, key: share})
    assert from_hf_config({**config, key: 64 if key == "rotary_dim" else 1.0}).rotary_dim in (
        None,
        64,
    )
    assert from_hf_config({**config, key: share, "model_type": "phi3"}).rotary_dim == 32


def test_shares_are_read_where_the_code_of_transformers_reads_them():
    words = ("partial_rotary_factor", "rotary_dim", "rotary_ndims")
    for name, row in MODELS.items():
        if code := read_code(name):
            assert row.reads_share == any(word in code for word in words), name
