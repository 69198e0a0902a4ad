"""Transformers of diffusers with a few random weights, and something to call them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Made = tuple[torch.nn.Module, dict[str, Any]]


class Small(NamedTuple):
    """A small model of a class, and its arguments for a batch of two."""

    name: str
    make: Callable[[], Made]

    def __str__(self) -> str:
        return self.name


def _of(name: str, **fields: Any) -> torch.nn.Module:
    import diffusers

    torch.manual_seed(0)
    model: torch.nn.Module = getattr(diffusers, name)(**fields).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # of which many start at 0, and hide what comes before
            parameter.copy_(torch.randn_like(parameter) / max(parameter.shape[-1:] or (4,)) ** 0.5)
    return model


def _noise(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


_TIME = torch.tensor([500.0, 20.0])
_HEADS = {"attention_head_dim": 16, "num_attention_heads": 2}


def flux() -> Made:
    model = _of(
        "FluxTransformer2DModel", in_channels=4, num_layers=1, num_single_layers=1, **_HEADS,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    image = torch.tensor([[0.0, i, j] for i in range(3) for j in range(4)])
    return model, {
        "hidden_states": _noise(2, 12, 4), "encoder_hidden_states": _noise(2, 5, 8),
        "pooled_projections": _noise(2, 8), "timestep": _TIME / 1000, "img_ids": image,
        "txt_ids": torch.zeros(5, 3),
    }  # fmt: skip


def qwen_image() -> Made:
    model = _of(
        "QwenImageTransformer2DModel", in_channels=16, out_channels=4, num_layers=1, **_HEADS,
        joint_attention_dim=8, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 12, 16), "encoder_hidden_states": _noise(2, 5, 8),
        "encoder_hidden_states_mask": torch.ones(2, 5, dtype=torch.int64),
        "timestep": _TIME / 1000, "img_shapes": [[(1, 3, 4)]] * 2,
    }  # fmt: skip


def wan() -> Made:
    model = _of(
        "WanTransformer3DModel", in_channels=4, out_channels=4, num_layers=1, text_dim=8,
        freq_dim=16, ffn_dim=16, rope_max_seq_len=32, **_HEADS,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "encoder_hidden_states": _noise(2, 5, 8),
        "timestep": _TIME.long(),
    }  # fmt: skip


def hunyuan_video() -> Made:
    model = _of(
        "HunyuanVideoTransformer3DModel", in_channels=4, out_channels=4, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, text_embed_dim=8, pooled_projection_dim=8,
        rope_axes_dim=(4, 4, 8), **_HEADS,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "encoder_hidden_states": _noise(2, 5, 8),
        "encoder_attention_mask": torch.ones(2, 5), "pooled_projections": _noise(2, 8),
        "timestep": _TIME.long(), "guidance": torch.full((2,), 6000.0),
    }  # fmt: skip


def cogvideox() -> Made:
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    model = _of(
        "CogVideoXTransformer3DModel", in_channels=4, out_channels=4, num_layers=1,
        text_embed_dim=8, time_embed_dim=8, sample_width=6, sample_height=4, sample_frames=9,
        max_text_seq_length=5, use_rotary_positional_embeddings=True, **_HEADS,
    )  # fmt: skip
    tables = get_3d_rotary_pos_embed(16, ((0, 0), (2, 3)), (2, 3), 3)
    return model, {
        "hidden_states": _noise(2, 3, 4, 4, 6), "encoder_hidden_states": _noise(2, 5, 8),
        "timestep": _TIME.long(), "image_rotary_emb": tables,
    }  # fmt: skip


def z_image() -> Made:
    model = _of(
        "ZImageTransformer2DModel", in_channels=4, dim=32, n_layers=1, n_refiner_layers=1,
        n_heads=2, n_kv_heads=2, cap_feat_dim=8, axes_dims=[4, 4, 8], axes_lens=[64, 32, 32],
    )  # fmt: skip
    return model, {
        "x": [_noise(4, 1, 4, 6), _noise(4, 1, 6, 4)], "t": _TIME / 1000,
        "cap_feats": [_noise(5, 8), _noise(7, 8)],
    }  # fmt: skip


def lumina2() -> Made:
    model = _of(
        "Lumina2Transformer2DModel", sample_size=8, in_channels=4, hidden_size=32, num_layers=1,
        num_refiner_layers=1, num_attention_heads=2, num_kv_heads=1, axes_dim_rope=(4, 4, 8),
        axes_lens=(32, 32, 32), cap_feat_dim=8, multiple_of=8,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 4, 6), "timestep": _TIME / 1000,
        "encoder_hidden_states": _noise(2, 5, 8),
        "encoder_attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2], dtype=torch.bool),
    }  # fmt: skip


def hidream() -> Made:
    model = _of(
        "HiDreamImageTransformer2DModel", patch_size=2, in_channels=4, out_channels=4,
        num_layers=1, num_single_layers=1, caption_channels=[8, 8], text_emb_dim=8,
        num_activated_experts=1, axes_dims_rope=(4, 4, 8), max_resolution=(8, 8),
        llama_layers=[0, 0], num_routed_experts=2, force_inference_output=True, **_HEADS,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 8, 8), "timesteps": _TIME,
        "encoder_hidden_states_t5": _noise(2, 3, 8),
        "encoder_hidden_states_llama3": _noise(1, 2, 3, 8), "pooled_embeds": _noise(2, 8),
    }  # fmt: skip


def cosmos() -> Made:
    model = _of(
        "CosmosTransformer3DModel", in_channels=4, out_channels=4, num_attention_heads=2,
        attention_head_dim=16, num_layers=1, text_embed_dim=8, adaln_lora_dim=4,
        max_size=(16, 16, 16), concat_padding_mask=False, extra_pos_embed_type=None,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "timestep": _TIME / 1000, "fps": 16,
        "encoder_hidden_states": _noise(2, 5, 8),
    }  # fmt: skip


def ltx() -> Made:
    model = _of(
        "LTXVideoTransformer3DModel", in_channels=4, out_channels=4, num_layers=1,
        cross_attention_dim=32, caption_channels=8, **_HEADS,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 12, 4), "encoder_hidden_states": _noise(2, 5, 8),
        "timestep": _TIME, "encoder_attention_mask": torch.ones(2, 5), "num_frames": 1,
        "height": 3, "width": 4, "rope_interpolation_scale": (8 / 25, 32, 32),
    }  # fmt: skip


def allegro() -> Made:
    from diffusers.models.embeddings import get_3d_rotary_pos_embed_allegro

    model = _of(
        "AllegroTransformer3DModel", in_channels=4, out_channels=4, num_layers=1,
        num_attention_heads=2, attention_head_dim=24, cross_attention_dim=48, sample_height=4,
        sample_width=6, sample_frames=3, caption_channels=8,
    )  # fmt: skip
    *tables, times, rows, columns = get_3d_rotary_pos_embed_allegro(24, ((0, 0), (2, 3)), (2, 3), 3)
    cells = torch.cartesian_prod(times.long(), rows.long(), columns.long())
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "encoder_hidden_states": _noise(2, 1, 5, 8),
        "timestep": _TIME.long(), "encoder_attention_mask": torch.ones(2, 5),
        "image_rotary_emb": (tuple(tables), tuple(cells.T[:, None])),
    }  # fmt: skip


def sana_wm() -> Made:
    model = _of(
        "SanaWMTransformer3DModel", in_channels=4, num_layers=2, hidden_size=48,
        num_attention_heads=2, softmax_every_n=2, linear_head_dim=24, caption_channels=8,
        chunk_plucker_channels=4, chunk_plucker_post_attn_blocks=1,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "encoder_hidden_states": _noise(2, 1, 5, 8),
        "timestep": _TIME[:, None, None].expand(2, 1, 3), "mask": torch.ones(2, 5),
    }  # fmt: skip


def sana_video() -> Made:
    model = _of(
        "SanaVideoTransformer3DModel", in_channels=4, out_channels=4, num_layers=1,
        num_attention_heads=2, attention_head_dim=12, num_cross_attention_heads=2,
        cross_attention_head_dim=12, cross_attention_dim=24, caption_channels=8,
    )  # fmt: skip
    return model, {
        "hidden_states": _noise(2, 4, 3, 4, 6), "encoder_hidden_states": _noise(2, 5, 8),
        "timestep": _TIME,
    }  # fmt: skip


SMALL = tuple(
    Small(make.__name__, make)
    for make in (
        *(flux, qwen_image, wan, hunyuan_video, cogvideox, z_image, lumina2, hidream),
        *(cosmos, ltx, allegro, sana_wm, sana_video),
    )
)


def called(model: torch.nn.Module, arguments: dict[str, Any]) -> torch.Tensor:
    """Return what a model makes of its arguments, as one tensor."""
    found = model(**arguments, return_dict=False)[0]
    return torch.cat([each.flatten() for each in found]) if isinstance(found, list) else found
