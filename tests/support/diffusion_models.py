"""Transformers of diffusers with a few random weights, and arguments to call them with."""

from typing import Any, NamedTuple

import diffusers
import torch
from diffusers.models.embeddings import get_3d_rotary_pos_embed


class Small(NamedTuple):
    """A small model of a class, and its arguments for a batch of two."""

    name: str
    class_name: str
    fields: dict[str, Any]
    arguments: dict[str, Any]

    def __str__(self):
        return self.name

    def make(self):
        torch.manual_seed(0)
        model = getattr(diffusers, self.class_name)(**self.fields).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # many start at 0, and hide their operands
                scale = max(parameter.shape[-1:] or (4,)) ** 0.5
                parameter.copy_(torch.randn_like(parameter) / scale)
        return model, self.arguments


def _noise(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


_TIME = torch.tensor([500.0, 20.0])
_MASK = torch.ones(2, 5)
_TEXT = {"encoder_hidden_states": _noise(2, 5, 8)}
_PATCHES = {"hidden_states": _noise(2, 12, 4), **_TEXT}
_VIDEO = {"hidden_states": _noise(2, 4, 3, 4, 6), **_TEXT}
_HEADS = {"attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 1}
_CHANNELS = {"in_channels": 4, "out_channels": 4}
_AXES = {"axes_dims_rope": (4, 4, 8)}

SMALL = (
    Small(
        "flux", "FluxTransformer2DModel",
        {
            **_HEADS, **_AXES, "in_channels": 4, "num_single_layers": 1, "joint_attention_dim": 8,
            "pooled_projection_dim": 8,
        },
        {
            **_PATCHES, "pooled_projections": _noise(2, 8), "timestep": _TIME / 1000,
            "img_ids": torch.tensor([[0.0, i, j] for i in range(3) for j in range(4)]),
            "txt_ids": torch.zeros(5, 3),
        },
    ),
    Small(
        "qwen_image", "QwenImageTransformer2DModel",
        {**_HEADS, **_AXES, "in_channels": 16, "out_channels": 4, "joint_attention_dim": 8},
        {
            **_TEXT, "hidden_states": _noise(2, 12, 16), "timestep": _TIME / 1000,
            "encoder_hidden_states_mask": _MASK.long(), "img_shapes": [[(1, 3, 4)]] * 2,
        },
    ),
    Small(
        "wan", "WanTransformer3DModel",
        {
            **_HEADS, **_CHANNELS, "text_dim": 8, "freq_dim": 16, "ffn_dim": 16,
            "rope_max_seq_len": 32,
        },
        {**_VIDEO, "timestep": _TIME.long()},
    ),
    Small(
        "cogvideox", "CogVideoXTransformer3DModel",
        {
            **_HEADS, **_CHANNELS, "text_embed_dim": 8, "time_embed_dim": 8, "sample_width": 6,
            "sample_height": 4, "sample_frames": 9, "max_text_seq_length": 5,
            "use_rotary_positional_embeddings": True,
        },
        {
            **_TEXT, "hidden_states": _noise(2, 3, 4, 4, 6), "timestep": _TIME.long(),
            "image_rotary_emb": get_3d_rotary_pos_embed(16, ((0, 0), (2, 3)), (2, 3), 3),
        },
    ),
    Small(
        "z_image", "ZImageTransformer2DModel",
        {
            "in_channels": 4, "dim": 32, "n_layers": 1, "n_refiner_layers": 1, "n_heads": 2,
            "n_kv_heads": 2, "cap_feat_dim": 8, "axes_dims": [4, 4, 8], "axes_lens": [64, 32, 32],
        },
        {
            "x": [_noise(4, 1, 4, 6), _noise(4, 1, 6, 4)], "t": _TIME / 1000,
            "cap_feats": [_noise(5, 8), _noise(7, 8)],
        },
    ),
    Small(
        "hidream", "HiDreamImageTransformer2DModel",
        {
            **_HEADS, **_AXES, **_CHANNELS, "patch_size": 2, "num_single_layers": 1,
            "caption_channels": [8, 8], "text_emb_dim": 8, "num_activated_experts": 1,
            "max_resolution": (8, 8), "llama_layers": [0, 0], "num_routed_experts": 2,
            "force_inference_output": True,
        },
        {
            "hidden_states": _noise(2, 4, 8, 8), "timesteps": _TIME, "pooled_embeds": _noise(2, 8),
            "encoder_hidden_states_t5": _noise(2, 3, 8),
            "encoder_hidden_states_llama3": _noise(1, 2, 3, 8),
        },
    ),
)  # fmt: skip
flux, _, wan, _, z_image, _ = (small.make for small in SMALL)


def call_model(model, arguments):
    outputs = model(**arguments, return_dict=False)[0]
    if isinstance(outputs, list):
        return torch.cat([output.flatten() for output in outputs])
    return outputs
