"""Transformers of diffusers with a few random weights, and arguments to call them with."""

import diffusers
import torch


def _noise(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


_TIME = torch.tensor([500.0, 20.0])
_TEXT = {"encoder_hidden_states": _noise(2, 5, 8)}
_HEADS = {"attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 1}

MODELS = {
    "flux": (
        "FluxTransformer2DModel",
        {
            **_HEADS, "axes_dims_rope": (4, 4, 8), "in_channels": 4, "num_single_layers": 1,
            "joint_attention_dim": 8, "pooled_projection_dim": 8,
        },
        {
            **_TEXT, "hidden_states": _noise(2, 12, 4), "pooled_projections": _noise(2, 8),
            "timestep": _TIME / 1000, "txt_ids": torch.zeros(5, 3),
            "img_ids": torch.tensor([[0.0, i, j] for i in range(3) for j in range(4)]),
        },
    ),
    "wan": (
        "WanTransformer3DModel",
        {
            **_HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 8, "freq_dim": 16,
            "ffn_dim": 16, "rope_max_seq_len": 32,
        },
        {**_TEXT, "hidden_states": _noise(2, 4, 3, 4, 6), "timestep": _TIME.long()},
    ),
    "z_image": (
        "ZImageTransformer2DModel",
        {
            "in_channels": 4, "dim": 32, "n_layers": 1, "n_refiner_layers": 1, "n_heads": 2,
            "n_kv_heads": 2, "cap_feat_dim": 8, "axes_dims": [4, 4, 8], "axes_lens": [64, 32, 32],
        },
        {
            "x": [_noise(4, 1, 4, 6), _noise(4, 1, 6, 4)], "t": _TIME / 1000,
            "cap_feats": [_noise(5, 8), _noise(7, 8)],
        },
    ),
}  # fmt: skip
"""The class, its fields, and arguments for a batch of two."""


def make(name):
    """Return a model with random weights, and its arguments."""
    kind, fields, arguments = MODELS[name]
    torch.manual_seed(0)
    model = getattr(diffusers, kind)(**fields).eval()
    for parameter in model.parameters():  # many start at 0, and hide their operands
        scale = max(parameter.shape[-1:] or (4,)) ** 0.5
        parameter.data = torch.randn_like(parameter) / scale
    return model, arguments


def call_model(model, arguments):
    outputs = model(**arguments, return_dict=False)[0]
    if isinstance(outputs, list):
        return torch.cat([output.flatten() for output in outputs])
    return outputs
