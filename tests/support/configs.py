"""Configurations of transformers: a small model, scalings, and keys of older versions."""

BASE, CONTEXT = 54_321.0, 4096
SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "num_hidden_layers": 2,
}
LLAMA = {"model_type": "llama", **SIZES}
TRAINED = "original_max_position_embeddings"
YARN = {"factor": 8.0, TRAINED: 512}


def longrope(pairs):
    short = [1.0 + 0.01 * i for i in range(pairs)]
    return {"short_factor": short, "long_factor": [1.5 * factor for factor in short]}


SCALINGS = [
    ("default", {}),
    ("linear", {"factor": 3.5}),
    ("dynamic", {"factor": 2.5}),
    ("yarn", YARN),
    ("yarn", {**YARN, "factor": None}),
    ("yarn", {**YARN, "beta_fast": 20, "beta_slow": 2, "truncate": False}),
    ("yarn", {**YARN, "beta_fast": 0, "beta_slow": 0}),  # 0 is for the default
    ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}),
    ("yarn", {**YARN, "mscale": 0.7}),
    ("yarn", {**YARN, "attention_factor": 1.25, "mscale": 0.7, "mscale_all_dim": 1.3}),
    ("yarn", {"factor": 8.0}),  # trained on max_position_embeddings
    ("longrope", {**longrope(32), TRAINED: 1024}),
    ("longrope", {**longrope(32), TRAINED: 1024, "factor": 6.5}),
    ("longrope", {**longrope(32), "factor": 6.5, "attention_factor": 1.125}),
    ("llama3", {"factor": 6.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0, TRAINED: 1000}),
    ("proportional", {"partial_rotary_factor": 0.3, "factor": 2.0}),
]


LAYERS = {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2}
LINEAR = {"rope_type": "linear", "factor": 8.0}
DEFAULT = {"rope_type": "default", "rope_theta": 5e5}
BASES = {"rope_theta": 7e5, "rope_local_base_freq": 3e4}
FULL_YARN = {"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}}
SU, PARTIAL = {"type": "su", **longrope(32)}, {"type": "longrope", **longrope(24)}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0}
DEEPSEEK = {"type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}
BY_MODEL = {
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 777},
    "stablelm": {"partial_rotary_factor": 0.5, "rope_theta": 777.0},
    "stablelm, odd": {"partial_rotary_factor": 0.3, "head_dim": 50},
    "phi3": {TRAINED: 1024, "rope_scaling": {**SU, TRAINED: 1024}},
    "phi3, yarn": {TRAINED: 1024, "rope_scaling": {**SU, "type": "yarn"}},
    "phi3, partial": {TRAINED: 1024, "partial_rotary_factor": 0.75, "rope_scaling": PARTIAL},
    "phi3, the top level wins": {TRAINED: 1024, "rope_scaling": {**SU, TRAINED: 2048}},
    "gemma3_text": {**LAYERS, **BASES, "rope_scaling": LINEAR},
    "gemma3_text, one layer type": {**LAYERS, "rope_parameters": {"full_attention": DEFAULT}},
    "gemma3_text, no base": {**LAYERS, "rope_parameters": {"full_attention": LINEAR}},
    "gemma3_text, a base elsewhere": {
        **LAYERS, **BASES, "rope_parameters": {"full_attention": LINEAR},
    },
    "gemma3_text, its own length": {
        **LAYERS, TRAINED: 999, "rope_parameters": {**FULL_YARN, "sliding_attention": DEFAULT},
    },
    "modernbert": {"global_rope_theta": 9e4, "local_rope_theta": 2e4, "rope_scaling": LINEAR},
    "olmo3": {**LAYERS, "rope_scaling": {"rope_type": "yarn", **YARN}},
    "deepseek_v4": {
        "head_dim": 512, "qk_rope_head_dim": 64, "rope_theta": 9e3, "compress_rope_theta": 2e5,
        "rope_scaling": {"type": "yarn", **YARN},
    },
    "step3p5": {
        **LAYERS, "head_dim": 128, "rope_theta": [5e6, 1e4] * 2,
        "partial_rotary_factors": [0.5, 1.0] * 2, "rope_scaling": LINEAR,
    },
    "ultrabert": {**LAYERS, "rope_theta": [5e6, 2e4] * 2},
    "hunyuan_v1_dense": {"head_dim": 64, "rope_theta": 777.0, "rope_scaling": ALPHA},
    "sarvam_mla": {
        "head_dim": 576, "qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_scaling": DEEPSEEK,
    },
    "laguna, a share elsewhere": {**LAYERS, "head_dim": 64, "partial_rotary_factor": 0.25},
    "llama, a base in both places": {"rope_theta": 777.0, "rope_parameters": DEFAULT},
    "apertus, a base elsewhere": {"rope_theta": 777.0},
    "llama, an empty dictionary": {
        "rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 777.0},
    },
}  # fmt: skip
OLD = {
    name: {**SIZES, "model_type": name.partition(",")[0], **keys} for name, keys in BY_MODEL.items()
}
"""Configurations as older versions wrote them, and odd ones."""
