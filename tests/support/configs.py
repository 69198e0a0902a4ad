"""Configurations of transformers: sizes of a small model, scalings and their spellings."""

BASE, CONTEXT = 54_321.0, 4096
SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "num_hidden_layers": 2,
}
LLAMA = {"model_type": "llama", **SIZES}
YARN = {"factor": 8.0, "original_max_position_embeddings": 512}


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
    ("longrope", {**longrope(32), "original_max_position_embeddings": 1024}),
    ("longrope", {**longrope(32), "original_max_position_embeddings": 1024, "factor": 6.5}),
    ("longrope", {**longrope(32), "factor": 6.5, "attention_factor": 1.125}),
    (
        "llama3",
        {
            "factor": 6.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
            "original_max_position_embeddings": 1000,
        },
    ),
    ("proportional", {"partial_rotary_factor": 0.3, "factor": 2.0}),
]  # fmt: skip


def list_spellings(name, keys):
    return {
        "rope_parameters": {"rope_parameters": {"rope_type": name, "rope_theta": BASE, **keys}},
        "rope_scaling": {"rope_theta": BASE, "rope_scaling": {"rope_type": name, **keys}},
        "type": {"rope_theta": BASE, "rope_scaling": {"type": name, **keys}},
    }
